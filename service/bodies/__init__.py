"""What requests and answers look like in JSON, one file per topic. The schemas say all that can be said in schemas."""
