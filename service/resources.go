package service

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// checkDemands refuses a job that needs more of a resource than there is, or says of a key of everybody's
// what its rule does not; its rule is the job's from then on.
func (s *Service) checkDemands(j *queue.Job) error {
	for i := range j.Demands {
		d := &j.Demands[i]
		if d.Ruled() && d.Owner(j.UID) == queue.Everybody {
			if err := s.ruleOfGate(d); err != nil {
				return err
			}
		}
		if d.Kind != queue.GateResource {
			continue
		}
		all := s.config.Load().ResourcesByName()
		switch r, known := all[d.Key]; {
		case !known:
			return queue.Invalid("resources", "there is no resource %q here%s; the settings name them: [resources.%s] count = N", d.Key, queue.Nearest(d.Key, slices.Sorted(maps.Keys(all))), d.Key)
		case d.N > len(r.IDs):
			return queue.Invalid("resources", "%d units of %s are asked for, and there are %d", d.N, d.Key, len(r.IDs))
		}
	}
	return nil
}

// unitNames are the ids of the units that a job holds, by resource.
func (s *Service) unitNames(j *queue.Job) (of map[string][]string) {
	if j.Units == "" {
		return nil
	}
	of = map[string][]string{}
	all := s.config.Load().ResourcesByName()
	queue.ParseUnits(j.Units, func(name string, units []int) {
		ids := all[name].IDs
		for _, u := range units {
			id := strconv.Itoa(u)
			if u < len(ids) {
				id = ids[u]
			}
			of[name] = append(of[name], id)
		}
	})
	return of
}

// unitVariables name the units that a job holds to it.
func (s *Service) unitVariables(j *queue.Job) (env []string) {
	all := s.config.Load().ResourcesByName()
	of := s.unitNames(j)
	for _, name := range slices.Sorted(maps.Keys(of)) {
		list := strings.Join(of[name], ",")
		env = append(env, "QUEUECTL_RESOURCE_"+variableOf(name)+"="+list)
		if also := all[name].Env; also != "" {
			env = append(env, also+"="+list)
		}
	}
	return env
}

// variableOf is a resource's name as that of a variable.
func variableOf(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z' || r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, name)
}
