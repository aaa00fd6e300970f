"""Questions with the passages of their prompts: of a made-up world, a user's file or documents. Knows no measuring."""
