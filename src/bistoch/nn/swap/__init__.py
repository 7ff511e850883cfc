"""What every swap of attention in a finished model needs: masks, and which layers and heads."""
