package access

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/queuectl/queuectl/queue"
)

// UserName returns the name of a uid, or its number.
func (o *Owners) UserName(uid int) string {
	if name, ok := o.Users.Load(uid); ok {
		return name.(string)
	}
	if name := o.nameOf(uid); name != "" || uid < 0 {
		return name
	}
	name := o.directory.UserName(uid)
	if name != strconv.Itoa(uid) { // do not cache a number, since the uid may get a name soon
		o.Users.Store(uid, name)
	}
	return name
}

// Names returns the name of the user that a job runs as. If a different user may have enqueued the job, Names
// also returns the name of that owner.
func (r *RunAs) Names(j *queue.Job) (user, owner string) {
	user = j.User
	if user == "" || j.AsUID != nil {
		owner = r.Owners.UserName(j.UID)
		user = cmp.Or(user, owner)
	}
	if j.AsUID != nil && !j.State.Ended() && r.Account.RunsAs(j) != *j.AsUID {
		// The job's user was chosen while run_as had another value, so it does not apply.
		user = r.Account.User
	}
	return user, owner
}

// KnownName returns the name of a uid, or its number if the name is not cached. It does not query the system.
func (o *Owners) KnownName(uid int) string {
	if name, ok := o.Users.Load(uid); ok {
		return name.(string)
	}
	return cmp.Or(o.nameOf(uid), fmt.Sprint(uid))
}

// OwnerName returns the name of a uid, or "" if it is unknown.
func (o *Owners) OwnerName(uid int) string {
	if name := o.UserName(uid); name != strconv.Itoa(uid) {
		return name
	}
	return ""
}

// HasOtherNodes reports whether other nodes of the queue are running.
func (o *Owners) HasOtherNodes() bool { return o.cluster != nil && o.cluster.HasOthers() }
