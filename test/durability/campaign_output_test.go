package durability

import (
	"fmt"
	"strings"
	"testing"
)

// outputComparison is the output of a completed job as the API method "logs" returned it, together with the expected
// output.
type outputComparison struct {
	gotText, wantText string // output that the method returned, and output that the job printed
	droppedBytes      int64  // bytes that the service reports as not stored
	damagedBytes      int64  // bytes that the service reports as damaged
	invalidPartCount  int    // number of parts of the reply that violate the protocol
	serviceError      string // error that the service returned; "" for none
	isFileTruncated   bool   // whether the campaign has truncated an output file of the job
}

// verdict compares the output with the expected one. If the output is acceptable, verdict returns the name of the
// counter for outputs of this kind. Otherwise, verdict returns a description of the violation.
func (o *outputComparison) classify() (counterName, violation string) {
	switch {
	case o.invalidPartCount > 0:
		return "", fmt.Sprintf("%d pieces of the answer cannot be read", o.invalidPartCount)
	case strings.Contains(o.serviceError, "to make room"):
		return "outputs forgotten", ""
	case o.isFileTruncated && (o.serviceError != "" || o.damagedBytes > 0):
		return "outputs damaged", ""
	case o.serviceError != "":
		return "", o.serviceError
	case o.damagedBytes > 0:
		return "", fmt.Sprintf("%d bytes are damaged, and no fault truncated its file", o.damagedBytes)
	case o.droppedBytes > 0:
		return "outputs dropped", ""
	case o.gotText != o.wantText:
		return "", fmt.Sprintf("%d bytes are not the %d that it prints", len(o.gotText), len(o.wantText))
	}
	return "outputs whole", ""
}

// The campaign accepts a damaged output only if the campaign itself truncated an output file of that job.
func TestCampaignRejectsOutputDamageItDidNotCause(t *testing.T) {
	for name, c := range map[string]struct {
		outputComparison
		count string // expected name of the counter; "" if a violation is expected
	}{
		"whole":       {outputComparison{gotText: "a", wantText: "a"}, "outputs whole"},
		"other bytes": {outputComparison{gotText: "b", wantText: "a"}, ""},
		"dropped":     {outputComparison{wantText: "a", droppedBytes: 1}, "outputs dropped"},
		"damaged by the campaign": {outputComparison{wantText: "a", damagedBytes: 1, isFileTruncated: true},
			"outputs damaged"},
		"damaged otherwise":                      {outputComparison{wantText: "a", damagedBytes: 1}, ""},
		"damaged otherwise, other bytes dropped": {outputComparison{wantText: "abc", damagedBytes: 1, droppedBytes: 1}, ""},
		"refused after a cut": {outputComparison{wantText: "a", serviceError: "is damaged", isFileTruncated: true},
			"outputs damaged"},
		"refused otherwise": {outputComparison{wantText: "a", serviceError: "is damaged"}, ""},
		"removed for room": {outputComparison{wantText: "a", serviceError: "was removed to make room"},
			"outputs forgotten"},
		"cut, and other bytes without a report": {outputComparison{gotText: "b", wantText: "a", isFileTruncated: true}, ""},
		"unreadable answer":                     {outputComparison{gotText: "a", wantText: "a", invalidPartCount: 1}, ""},
	} {
		if count, wrong := c.classify(); count != c.count || (wrong == "") != (count != "") {
			t.Errorf("%s: counted as %q, violation %q; want %q", name, count, wrong, c.count)
		}
	}
}
