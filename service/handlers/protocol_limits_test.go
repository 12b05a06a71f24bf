package handlers

import (
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// The limits that package control declares to clients are the limits that the packages store and worker
// enforce.
func TestProtocolDeclaresEnforcedLimits(t *testing.T) {
	for name, c := range map[string][2]int{
		"jobs of a page":           {control.MaxJobsPerPage, store.MaxPageRows},
		"rows of a screen":         {control.MaxJobsPerScreenSection, store.MaxScreenRowsPerPart},
		"workers":                  {control.MaxWorkers, worker.MaxWorkers},
		"bytes of a schedule name": {control.MaxScheduleNameBytes, store.MaxScheduleNameBytes},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: the protocol declares %d; the limit is %d", name, c[0], c[1])
		}
	}
}
