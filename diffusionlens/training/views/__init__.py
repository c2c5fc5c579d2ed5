"""From pictures to batches of views: which pictures, where the crops lie, what happens to their colours, and where."""
