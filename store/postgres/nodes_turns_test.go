package postgres

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/test/pgserver"
)

// A dependant is a job that depends on another job. When the store decides which dependants may run, their
// users take turns, even if nodes reload their caches. Here, two nodes alternately change a queue, which
// makes the other node reload.
func TestUserTurnsOfDependantsSurviveCacheReload(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	put := func(uid, n int, after ...queue.Dependency) (seqs []int64) {
		drafts := make([]queue.Job, n)
		for i := range drafts {
			drafts[i] = newDraft(withUID(uid))
			drafts[i].DependsOn = after
		}
		r, err := a.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts, UID: uid})
		if err != nil {
			t.Fatal(err)
		}
		return r.Seqs
	}
	child := int64(0)
	for _, uid := range []int{1, 2, 3} {
		n := 800
		if uid == 3 {
			n = 1
		}
		child = put(uid, n, queue.Dependency{ParentSeq: put(uid, 1)[0], Condition: queue.ParentCompleted})[0]
	}
	var ends []store.Settlement
	jobs := claimOnNode(t, a, 3)
	for i := range jobs {
		ends = append(ends, completedSettlement(&jobs[i]))
	}
	if _, err := a.ReportAndClaim(t.Context(), store.LeaseReport{Settlements: ends}); err != nil {
		t.Fatal(err)
	}
	for weight := range 4 {
		for _, s := range []*Store{a, b} {
			if err := s.SetQueue(t.Context(), "q", store.QueueRule{Weight: 1 + weight}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := pgserver.Query(t, url, fmt.Sprintf(`SELECT count(*) FROM queuectl.edges WHERE met = 0 AND child = %d`,
		child)); n != "0" {
		t.Error("the third user's dependant waits for those of the others")
	}
	if n := pgserver.Query(t, url, `SELECT count(*) > 0 FROM queuectl.edges WHERE met = 0`); n != "t" {
		t.Error("all dependencies are resolved already, so this test proves nothing")
	}
}

// A node does not claim jobs of users without an account on its machine, whether or not the jobs need locks and the
// users have a quota. Other nodes claim these jobs. When the accounts exist, the node claims the jobs.
func TestNodeClaimsNoJobsOfUnknownUsers(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	knows := func(s *Store, name string, strangers ...int) {
		t.Helper()
		n := store.Node{Name: name, UIDsWithoutAccount: map[int]bool{}}
		for _, uid := range strangers {
			n.UIDsWithoutAccount[uid] = true
		}
		if err := s.SetThisNodeProperties(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	plain := func() queue.Job {
		j := draftWithDemand(queue.Demand{})
		j.Demands = nil
		return j
	}
	locked := draftWithDemand(queue.Demand{Kind: queue.GateLock, GateKey: "k", Amount: 9})
	knows(a, "a", newDraft().UID)
	enqueueOnNode(t, b, plain(), locked, plain(), locked)
	if more := claimOnNode(t, a, 9); len(more) != 0 {
		t.Errorf("jobs of an account that the node lacks are claimed: %v", seqsOfJobs(more))
	}
	if all, err := a.WaitReasons(t.Context(), []int64{1}); err != nil || len(all[1]) != 1 ||
		all[1][0].GateKind != queue.GateUser || all[1][0].MaxUnits != 0 {
		t.Errorf("obstacles of the job: %+v, %v; want the quota of its user", all, err)
	}
	if more := claimOnNode(t, b, 2); !slices.Equal(seqsOfJobs(more), []int64{1, 2}) {
		t.Errorf("the other node claims %v", seqsOfJobs(more))
	}
	if err := b.SetMaxRunningPerUser(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if more := append(claimOnNode(t, b, 9), claimOnNode(t, a, 9)...); len(more) != 0 {
		t.Errorf("above the quota are claimed %v", seqsOfJobs(more))
	}
	if err := errors.Join(a.SetMaxRunningPerUser(t.Context(), 3), b.SetMaxRunningPerUser(t.Context(), 3)); err != nil {
		t.Fatal(err)
	}
	if more := append(claimOnNode(t, a, 9), claimOnNode(t, b, 9)...); !slices.Equal(seqsOfJobs(more), []int64{3}) {
		t.Errorf("with room for one more job, the nodes claimed %v", seqsOfJobs(more))
	}
	if err := errors.Join(a.SetMaxRunningPerUser(t.Context(), 0), b.SetMaxRunningPerUser(t.Context(), 0)); err != nil {
		t.Fatal(err)
	}
	enqueueOnNode(t, b, plain())
	if more := claimOnNode(t, a, 9); len(more) != 0 {
		t.Errorf("jobs of an account that the node lacks are claimed: %v", seqsOfJobs(more))
	}
	knows(a, "a")
	if more := claimOnNode(t, a, 9); !slices.Equal(seqsOfJobs(more), []int64{4, 5}) {
		t.Errorf("once the node has the account, it claims %v", seqsOfJobs(more))
	}
}

// A node deletes the output files that are on it. When the node is gone, any node may delete them. No node
// reads the rows about output files of other nodes.
func TestNodesDeleteTheirOwnOutputs(t *testing.T) {
	url := pgserver.SharedServer(t).CreateDatabase(t)
	a, b := openNodeWithGPU(t, url, "a"), openNodeWithGPU(t, url, "b")
	pgserver.Query(t, url,
		`INSERT INTO queuectl.garbage SELECT n || '-' || node, node FROM generate_series(1, 3) AS n, unnest(ARRAY['', 'a', 'b', 'gone']) AS node`)
	for s, want := range map[*Store][]string{
		a: {"1-", "2-", "3-", "1-a", "2-a", "3-a", "1-gone"},
		b: {"1-", "2-", "3-", "1-b", "2-b", "3-b", "1-gone"},
	} {
		refs, err := s.DeletableOutputs(t.Context(), 7)
		if err != nil || !slices.Equal(refs, want) {
			t.Errorf("got %q, %v, want %q", refs, err, want)
		}
		if refs, err = s.DeletableOutputs(t.Context(), 99); err != nil || len(refs) != 9 {
			t.Errorf("all: got %q, %v", refs, err)
		}
	}
}
