package cli

// unusableSettings lists settings with which a service cannot start, with a part of the expected error.
var unusableSettings = []struct{ key, value, wantText string }{
	{"run_as", "submitter", "password"},
	{"run_as", "fixed:nosuchuser", "password"},
}
