package control

import (
	"encoding/json"
	"reflect"
	"testing"
)

// EnqueueResult.UnmarshalJSON, which is written without reflection, decodes every field.
func TestEnqueueResultDecodesEveryField(t *testing.T) {
	want := EnqueueResult{JobID: "a", JobSeq: 7, AlreadyExisted: true, UnenforcedLimits: []string{"cpus"},
		CreatedQueues: []CreatedQueue{{"gpu", "gpus"}}, State: "cancelled", MaxAttempts: 4, Notes: []string{"later"}}
	for v, i := reflect.ValueOf(want), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("%s: a field without a value here", v.Type().Field(i).Name)
		}
	}
	raw, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got EnqueueResult
	if err := json.Unmarshal(raw, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}
