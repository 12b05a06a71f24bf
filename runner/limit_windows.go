package runner

// OutliveFileLimit has a write past the limit of how large a file may be fail; Windows has
// none.
func OutliveFileLimit() {}
