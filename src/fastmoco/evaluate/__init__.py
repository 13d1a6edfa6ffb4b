"""What the embeddings are worth: judgements of features that were extracted once."""
