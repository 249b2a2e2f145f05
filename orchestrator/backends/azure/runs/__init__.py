"""Jobs on Azure: sent, watched, read and adopted."""
