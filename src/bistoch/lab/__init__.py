"""The lab: the only room that trains, fetches, times, writes files or knows a paper's number."""
