package durability

import (
	"fmt"
	"strings"
	"testing"
)

// outputRead is the output of a completed job as the API method "logs" returned it, together with the expected
// output.
type outputRead struct {
	text, want   string // output that the method returned, and output that the job printed
	droppedBytes int64  // bytes that the service reports as not stored
	damagedBytes int64  // bytes that the service reports as damaged
	invalidParts int    // number of parts of the reply that violate the protocol
	serviceError string // error that the service returned; "" for none
	isCut        bool   // whether the campaign has truncated an output file of the job
}

// verdict compares the output with the expected one. If the output is acceptable, verdict returns the name of
// the counter for outputs of this kind. Otherwise it describes the violation.
func (o *outputRead) verdict() (counter, violation string) {
	switch {
	case o.invalidParts > 0:
		return "", fmt.Sprintf("%d pieces of the answer cannot be read", o.invalidParts)
	case strings.Contains(o.serviceError, "to make room"):
		return "outputs forgotten", ""
	case o.isCut && (o.serviceError != "" || o.damagedBytes > 0):
		return "outputs damaged", ""
	case o.serviceError != "":
		return "", o.serviceError
	case o.damagedBytes > 0:
		return "", fmt.Sprintf("%d bytes are damaged, and no fault truncated its file", o.damagedBytes)
	case o.droppedBytes > 0:
		return "outputs dropped", ""
	case o.text != o.want:
		return "", fmt.Sprintf("%d bytes are not the %d that it prints", len(o.text), len(o.want))
	}
	return "outputs whole", ""
}

// The campaign accepts a damaged output only if the campaign itself truncated an output file of that job.
func TestCampaignRejectsDamageItDidNotCause(t *testing.T) {
	for name, c := range map[string]struct {
		outputRead
		count string // expected name of the counter; "" if a violation is expected
	}{
		"whole":                                  {outputRead{text: "a", want: "a"}, "outputs whole"},
		"other bytes":                            {outputRead{text: "b", want: "a"}, ""},
		"dropped":                                {outputRead{want: "a", droppedBytes: 1}, "outputs dropped"},
		"damaged by the campaign":                {outputRead{want: "a", damagedBytes: 1, isCut: true}, "outputs damaged"},
		"damaged otherwise":                      {outputRead{want: "a", damagedBytes: 1}, ""},
		"damaged otherwise, other bytes dropped": {outputRead{want: "abc", damagedBytes: 1, droppedBytes: 1}, ""},
		"refused after a cut": {outputRead{want: "a", serviceError: "is damaged", isCut: true},
			"outputs damaged"},
		"refused otherwise": {outputRead{want: "a", serviceError: "is damaged"}, ""},
		"removed for room": {outputRead{want: "a", serviceError: "was removed to make room"},
			"outputs forgotten"},
		"cut, and other bytes without a report": {outputRead{text: "b", want: "a", isCut: true}, ""},
		"unreadable answer":                     {outputRead{text: "a", want: "a", invalidParts: 1}, ""},
	} {
		if count, wrong := c.verdict(); count != c.count || (wrong == "") != (count != "") {
			t.Errorf("%s: counted as %q, violation %q; want %q", name, count, wrong, c.count)
		}
	}
}
