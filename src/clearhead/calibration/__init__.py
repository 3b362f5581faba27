"""Calibration of the audit: how often it detects planted heads, and how often it calls heads of random models."""
