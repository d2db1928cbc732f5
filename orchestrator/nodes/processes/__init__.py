"""An engine without containers: processes of this computer in their place."""
