package control

import "slices"

// Right names a set of actions that a user may take. A stronger right includes all weaker ones.
type Right string

// These are the rights, the weakest first.
const (
	RightNone    Right = "none"
	RightRead    Right = "read"
	RightSubmit  Right = "submit"
	RightOperate Right = "operate"
	RightAdmin   Right = "admin"
)

// rights lists all rights, the weakest first.
var rights = []Right{RightNone, RightRead, RightSubmit, RightOperate, RightAdmin}

// GrantableRights returns the rights that can be granted to a user, the weakest first.
func GrantableRights() []Right { return rights[1:] }

// Covers reports whether the right r includes another right. An unknown right includes no right.
func (r Right) Covers(other Right) bool {
	have, need := slices.Index(rights, r), slices.Index(rights, other)
	return need >= 0 && have >= need
}

// IncludedRights returns r and all weaker rights except RightNone, the weakest first.
func (r Right) IncludedRights() []Right { return rights[1 : 1+max(0, slices.Index(rights, r))] }

// Access holds the rights that were granted to users, by uid, and to groups, by gid.
type Access struct {
	RightsByUID, RightsByGID map[int]Right
}

// StrongestRightOf returns the strongest of the rights that were granted to the peer's user and groups.
func (a *Access) StrongestRightOf(p *Peer) Right {
	best := RightNone
	raise := func(r Right) { // r may be "", which covers no other right
		if r.Covers(best) {
			best = r
		}
	}
	raise(a.RightsByUID[p.UID])
	raise(a.RightsByGID[p.GID])
	for _, g := range p.Groups {
		raise(a.RightsByGID[g])
	}
	return best
}

// RequiredRight returns the right that a caller needs for a method. onCallersJobs says whether the method acts on the
// caller's own jobs. For an unknown method it returns "", which no right covers.
func RequiredRight(method string, onCallersJobs bool) Right {
	m := findMethod(method)
	switch {
	case m == nil:
		return ""
	case onCallersJobs:
		return m.Right
	}
	return m.RightForOthersJobs
}
