package queue

import "slices"

// Extent is how far a limit of jobs is enforced.
type Extent int

// The extents.
const (
	Unenforced Extent = iota
	ForEach           // for each process by itself, though it is meant for a job's together
	Enforced          // as it is meant
)

// Enforcement is how one limit of jobs is enforced where they run.
type Enforcement struct {
	Limit  string // the name of the field
	Extent Extent
	By     string // what enforces it; if nothing does, why
}

// limits are the fields that limit a job, and whether it has each.
var limits = []struct {
	name string
	of   func(j *Job) bool
}{
	{"memory", func(j *Job) bool { return j.Memory != 0 }},
	{"cpus", func(j *Job) bool { return j.CPUs != 0 }},
	{"tasks", func(j *Job) bool { return j.Tasks != 0 }},
	{"nice", func(j *Job) bool { return j.Nice != 0 }},
	{"nofile", func(j *Job) bool { return j.NoFile != 0 }},
	{"no_new_privileges", func(j *Job) bool { return j.NoNewPrivileges }},
}

// Enforcements are those of all limits: one that is not among the known is not enforced.
func Enforcements(known []Enforcement) (list []Enforcement) {
	for _, l := range limits {
		e := Enforcement{Limit: l.name, By: "no runner has reported support for this limit"}
		if i := slices.IndexFunc(known, func(e Enforcement) bool { return e.Limit == l.name }); i >= 0 {
			e = known[i]
		}
		list = append(list, e)
	}
	return list
}

// AnyLimit reports whether any of these jobs has a limit.
func AnyLimit(jobs []Job) bool {
	for i := range jobs {
		for _, l := range limits {
			if l.of(&jobs[i]) {
				return true
			}
		}
	}
	return false
}

// Shortfall is a limit that is not enforced as it is meant, and the first job that has it.
type Shortfall struct {
	Enforcement
	Index int
}

// Shortfalls are those of jobs, in the order of the fields.
func Shortfalls(jobs []Job, known []Enforcement) (list []Shortfall) {
	for i, e := range Enforcements(known) {
		if e.Extent == Enforced {
			continue
		}
		if at := slices.IndexFunc(jobs, func(j Job) bool { return limits[i].of(&j) }); at >= 0 {
			list = append(list, Shortfall{e, at})
		}
	}
	return list
}
