"""How good forecasts are on kernels that were measured: what ``gpu-forecasters evaluate`` does."""
