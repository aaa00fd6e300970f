"""An endpoint under requests that come when they come: what is sent, how it is sent, and what the times say."""
