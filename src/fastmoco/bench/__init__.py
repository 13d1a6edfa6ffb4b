"""How fast this is, beside others: each verb of `fastmoco bench` prints a table and writes a record."""
