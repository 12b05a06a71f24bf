package worker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// The frame that starts a job stays below the size limit, even if the job has many dependencies. The frame
// omits results of dependencies that would be too large, and results that belong to other users.
func TestDependencyResultsFitInFrame(t *testing.T) {
	result, err := json.Marshal(strings.Repeat("x", queue.MaxResultBytes-2))
	if err != nil {
		t.Fatal(err)
	}
	result = bytes.ReplaceAll(result, []byte("x"), []byte("<"))
	list := make([]store.ParentJob, queue.MaxDependencies)
	for i := range list {
		list[i] = store.ParentJob{ID: fmt.Sprintf("%0128d", i), UID: 7, State: queue.Cancelled, ExitCode: 255,
			ResultJSON: result}
	}
	list[0].UID = 8
	encoded, err := dependenciesJSON(&queue.Job{UID: 7}, list)
	if err != nil || len(encoded) > wire.MaxFrameBytes-queue.MaxArgsEnvBytes-queue.MaxStdinBytes-64<<10 {
		t.Fatalf("the dependencies take %d bytes, error %v; want them to fit in a Start frame", len(encoded), err)
	}
	var got []parentJSON
	if err := json.Unmarshal(encoded, &got); err != nil || len(got) != len(list) {
		t.Fatalf("decoded %d dependencies, want %d, error %v", len(got), len(list), err)
	}
	if string(got[0].Result) != "null" || !bytes.Equal(got[1].Result, result) ||
		string(got[len(got)-1].Result) != "null" || got[1].State != "cancelled" || *got[1].ExitCode != 255 {
		t.Errorf("got results %.100s, %d bytes for the second parent, %s", got[0].Result,
			len(got[1].Result), got[len(got)-1].Result)
	}
	if none, err := dependenciesJSON(&queue.Job{}, nil); err != nil || string(none) != "[]" {
		t.Errorf("without parents: %q, %v", none, err)
	}
}
