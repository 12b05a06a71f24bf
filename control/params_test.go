package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

func jsonArray(elementCount int, element string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(element+",", elementCount), ",") + "]"
}

// labelsJSON returns a JSON object with the given number of labels. The name and the value of each label have
// bytesPerLabel bytes together.
func labelsJSON(labelCount, bytesPerLabel int) string {
	var members []string
	for i := range labelCount {
		name := fmt.Sprintf("%04d", i)
		members = append(members, fmt.Sprintf("%q:%q", name, strings.Repeat("v", bytesPerLabel-len(name))))
	}
	return "{" + strings.Join(members, ",") + "}"
}

// A parameter may be as large as its limit. If the parameter is larger, the error names it.
func TestParameterSizesAreBounded(t *testing.T) {
	text := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	for _, c := range []struct {
		params    func() any
		name      string
		at, above string
	}{
		{func() any { return &JobSelection{} }, "ids", jsonArray(MaxJobIDs, "1"), jsonArray(MaxJobIDs+1, "1")},
		{func() any { return &DeadJobRetryParams{} }, "ids", jsonArray(MaxJobIDs, `"a"`), jsonArray(MaxJobIDs+1, `"a"`)},
		{func() any { return &JobWaitParams{} }, "ids", jsonArray(MaxWaitOrFollowJobIDs, "1"),
			jsonArray(MaxWaitOrFollowJobIDs+1, "1")},
		{func() any { return &EventsParams{} }, "id", jsonArray(MaxWaitOrFollowJobIDs, "1"),
			jsonArray(MaxWaitOrFollowJobIDs+1, "1")},
		{func() any { return &EventsParams{} }, "event", jsonArray(MaxTextListItems, `"ended"`),
			jsonArray(MaxTextListItems+1, `"ended"`)},
		{func() any { return &JobListParams{} }, "state", jsonArray(MaxTextListItems, `"dead"`),
			jsonArray(MaxTextListItems+1, `"dead"`)},
		{func() any { return &JobListParams{} }, "label", labelsJSON(queue.MaxLabels, queue.MaxLabelBytes),
			labelsJSON(queue.MaxLabels+1, 8)},
		{func() any { return &JobSelection{} }, "label", labelsJSON(1, queue.MaxLabelBytes),
			labelsJSON(1, queue.MaxLabelBytes+1)},
		{func() any { return &JobListParams{} }, "user", text(maxUserNameBytes), text(maxUserNameBytes + 1)},
		{func() any { return &JobKillParams{} }, "user", text(maxUserNameBytes), text(maxUserNameBytes + 1)},
		{func() any { return &JobListParams{} }, "cursor", `"999999999999999999"`, `"1000000000000000000"`},
		{func() any { return &SimulateParams{} }, "next", fmt.Sprint(MaxSimulatedJobs), fmt.Sprint(MaxSimulatedJobs + 1)},
		{func() any { return &JobRemoveParams{} }, "id_glob", text(queue.MaxGlobBytes), text(queue.MaxGlobBytes + 1)},
		{func() any { return &JobOutputParams{} }, "n", fmt.Sprint(MaxOutputLines), fmt.Sprint(MaxOutputLines + 1)},
		{func() any { return &ConfigSetParams{} }, "value", text(MaxSettingValueBytes), text(MaxSettingValueBytes + 1)},
	} {
		others := map[string]string{"n": `"id":"a",`, "value": `"key":"workers",`}[c.name]
		if err := decodeParams(json.RawMessage(`{`+others+`"`+c.name+`":`+c.at+`}`), c.params()); err != nil {
			t.Errorf("%T: %s at its limit: %v", c.params(), c.name, err)
		}
		var e *queue.Error
		if err := decodeParams(json.RawMessage(`{"`+c.name+`":`+c.above+`}`), c.params()); !errors.As(err, &e) ||
			e.Code != queue.CodeInvalid || e.Field != c.name || len(e.Message) > 200 {
			t.Errorf("%T: %s above its limit: got %.300v", c.params(), c.name, err)
		}
	}
	envelope := func(members int, id string) string {
		line := `{"id":` + id
		for i := range members - 2 {
			line += fmt.Sprintf(`,"m%d":1`, i)
		}
		return line + `,"method":"x"}`
	}
	for line, good := range map[string]bool{
		envelope(maxRequestMembers, "1"): true, envelope(maxRequestMembers+1, "1"): false,
		envelope(2, text(maxRequestIDBytes-2)): true, envelope(2, text(maxRequestIDBytes-1)): false,
	} {
		if _, err := parseRequest([]byte(line)); good != (err == nil) || err != nil &&
			!errors.Is(err, queue.ErrInvalidRequest) {
			t.Errorf("an envelope of %d bytes: got %v, want it good: %t", len(line), err, good)
		}
	}
}

// A text that is not a valid id is treated as the id of a job that does not exist. It is shortened.
func TestInvalidJobIDsAreShortened(t *testing.T) {
	long := strings.Repeat("x", 128)
	for raw, want := range map[string]string{
		`"` + long + `"`: long, `"` + long + `x"`: strings.Repeat("x", 80) + "…", `"a b"`: "a b", `""`: "", `-5`: "-5",
		`"` + strings.Repeat(`\u0001`, 100) + `"`: strings.Repeat("\x01", 13) + "…",
		strings.Repeat("7", 128):                  strings.Repeat("7", 128),
		strings.Repeat("7", 129):                  strings.Repeat("7", 80) + "…",
	} {
		var p struct {
			ID  JobID  `json:"id"`
			IDs JobIDs `json:"ids"`
		}
		err := json.Unmarshal([]byte(`{"id":`+raw+`,"ids":[`+raw+`]}`), &p)
		if err != nil || string(p.ID) != want || p.IDs[0] != want {
			t.Errorf("%.50s: got %q and %q, %v, want %q", raw, p.ID, p.IDs, err, want)
		}
	}
}
