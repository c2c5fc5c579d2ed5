"""From a picture with its annotations to a sample: fitted to the model's size, or random views of it."""
