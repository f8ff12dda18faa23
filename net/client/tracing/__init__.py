"""Spans of OpenTelemetry for records that are sent and processed."""
