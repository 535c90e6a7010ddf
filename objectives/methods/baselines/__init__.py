"""What a search has to beat: rankings that cost nothing, and draws by lot."""
