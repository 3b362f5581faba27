"""Calibration of the audit: how often it detects planted heads, and how often it flags heads of random models."""
