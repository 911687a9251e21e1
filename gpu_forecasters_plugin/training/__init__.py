"""Training of language models as forecasters: data, rewards, and the methods that ``gpu-forecasters train`` offers."""
