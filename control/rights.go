package control

import "slices"

// Right names a set of actions that a user may take. Each right includes all weaker rights.
type Right string

// The rights, the weakest first.
const (
	RightNone    Right = "none"
	RightRead    Right = "read"
	RightSubmit  Right = "submit"
	RightOperate Right = "operate"
	RightAdmin   Right = "admin"
)

var rights = []Right{RightNone, RightRead, RightSubmit, RightOperate, RightAdmin}

// Rights returns the rights that a user can be granted, the weakest first.
func Rights() []Right { return rights[1:] }

// Covers reports whether a right includes another. A value that is not a right includes none.
func (r Right) Covers(other Right) bool {
	have, need := slices.Index(rights, r), slices.Index(rights, other)
	return need >= 0 && have >= need
}

// Included returns the rights that a right includes, and the right itself.
func (r Right) Included() []Right { return rights[1 : 1+max(0, slices.Index(rights, r))] }

// Access holds the rights of users and groups, by uid and gid.
type Access struct {
	Users, Groups map[int]Right
}

// RightOf returns the strongest right that the user or one of the groups of the peer has.
func (a *Access) RightOf(p *Peer) Right {
	best := RightNone
	raise := func(r Right) { // r is "" if no right was granted; "" covers nothing
		if r.Covers(best) {
			best = r
		}
	}
	raise(a.Users[p.UID])
	if len(a.Groups) == 0 {
		return best
	}
	raise(a.Groups[p.GID])
	for _, g := range p.Groups {
		raise(a.Groups[g])
	}
	return best
}

// RequiredRight returns the right that a method needs. own says whether it acts on the caller's own jobs or
// on other users' jobs. For an unknown method it returns "", which no right covers.
func RequiredRight(method string, own bool) Right {
	m := findMethod(method)
	switch {
	case m == nil:
		return ""
	case own:
		return m.Right
	}
	return m.OthersRight
}
