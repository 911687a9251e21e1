"""Whether forecasts can be trusted: measures, deferral thresholds with a guarantee, and drift."""
