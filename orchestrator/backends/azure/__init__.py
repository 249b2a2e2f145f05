"""Runs on Azure ML. Nothing of Azure's SDK is loaded before something has to be asked of or sent to Azure."""
