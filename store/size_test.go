package store

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// For any text, encodedJSONBytes returns the length of the JSON that encoding/json writes, plus one for the comma.
func TestEncodedJSONBytesMatchesEncodedLength(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, s := range []string{"", "plain", string(all), "ü漢\u2028\u2029\ufffd\U0001f600", "\xff\xfe\xe6\xbc",
		"<&>\"\\\x00\x7f"} {
		raw, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := encodedJSONBytes(s); got != len(raw)+1 {
			t.Errorf("%.20q: got %d, want %d and the comma", s, got, len(raw))
		}
	}
}

// JobTextBytes counts every text of a job that a page shows, and no other text.
func TestJobTextBytesCountsEveryText(t *testing.T) {
	empty := JobTextBytes(&queue.Job{})
	for name, c := range map[string]struct {
		job  queue.Job
		want int
	}{
		"command": {queue.Job{ExecutionSettings: queue.ExecutionSettings{Command: "1234567"}}, 7},
		// argv takes 10 bytes with quotes and commas; the command text made from argv is added
		"argv":   {queue.Job{ExecutionSettings: queue.ExecutionSettings{Argv: []string{"1", "234"}}}, 10 + len("1 234")},
		"labels": {queue.Job{ExecutionSettings: queue.ExecutionSettings{Labels: map[string]string{"a": "b<"}}}, 14},
		"error":  {queue.Job{Error: "\x01"}, 6},
		"env":    {queue.Job{ExecutionSettings: queue.ExecutionSettings{Env: []string{"A=1"}, Stdin: "text"}}, 0},
	} {
		if got := JobTextBytes(&c.job) - empty; got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
	for at, i := reflect.TypeFor[queue.ExecutionSettings](), 0; i < at.NumField(); i++ {
		var j queue.Job
		switch to := reflect.ValueOf(&j.ExecutionSettings).Elem().Field(i).Addr().Interface().(type) {
		case *string:
			*to = "1234567"
		case *[]string:
			*to = []string{"1234567"}
		case *map[string]string:
			*to = map[string]string{"a": "1234567"}
		default:
			continue
		}
		if name, got := at.Field(i).Name, JobTextBytes(&j)-empty; got < 7 && name != "Env" && name != "Stdin" {
			t.Errorf("%s of 7 bytes: got %d", name, got)
		}
	}
	if got := AttemptTextBytes(&queue.Attempt{Error: "\n",
		Output: []byte("x")}) - AttemptTextBytes(&queue.Attempt{}); got != 2 {
		t.Errorf("an attempt's error: got %d, want 2", got)
	}
}
