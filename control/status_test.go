package control

import (
	"encoding/json"
	"testing"
)

// In JSON, all members of Status are on one level, in this order.
func TestStatusIsOneJSONObject(t *testing.T) {
	got, err := json.Marshal(Status{
		Storage: Storage{StateDir: "/state", StoreLocation: "postgres", DatabaseBytes: 1, OutputBytes: 2},
		QuotaUse: QuotaUse{CallerStoredBytes: 3, MaxBytesPerUser: 4,
			UsersNearQuota: []UserBytes{{UID: 5, User: "mira", StoredBytes: 6}}},
		SettingsFile: "/settings", Node: "a", StoreError: "restarts",
	})
	want := `{"jobs":null,"workers":{"total":0,"busy":0,"idle":0},"oldest_waiting":null,"enqueued":0,"last_event":0,` +
		`"throughput_per_minute":0,"database":"/state","store":"postgres","database_bytes":1,"output_bytes":2,` +
		`"user_bytes":3,"max_bytes_per_user":4,"users_near_quota":[{"uid":5,"user":"mira","bytes":6}],` +
		`"settings_file":"/settings","service":"","socket":"","pid":0,"node":"a","version":"","started_at":null,` +
		`"draining":false,"paused_at":null,"paused_by":null,"reranking":false,"away":"restarts","health":""}`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v\nwant %s", got, err, want)
	}
}
