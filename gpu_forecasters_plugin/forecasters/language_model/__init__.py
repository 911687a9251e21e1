"""Forecasts by a language model: prompts, readouts, endpoints. Imports no openai, jinja2 or vllm by itself."""
