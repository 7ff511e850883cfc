def write_report(found, out, console):
    return out
