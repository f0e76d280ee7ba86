"""Model drivers: any OpenAI-compatible endpoint, and the scripted server that plays one."""
