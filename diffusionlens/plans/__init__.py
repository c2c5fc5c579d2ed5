"""Plans: which analyses, probes and tracks make a report, on what data they need; run section by section, resumable."""
