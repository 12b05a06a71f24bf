package settings

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// UnitNames returns the ids of the resource units that a job holds, by resource. A resource, such as "gpu",
// consists of several equal units, each with its id.
func (k *Keeper) UnitNames(j *queue.Job) (byResource map[string][]string) {
	if j.HeldUnits == "" {
		return nil
	}
	byResource = map[string][]string{}
	all := k.Current().ResourcesByName()
	queue.ParseUnits(j.HeldUnits, func(name string, units []int) {
		ids := all[name].IDs
		for _, u := range units {
			id := strconv.Itoa(u)
			if u < len(ids) {
				id = ids[u]
			}
			byResource[name] = append(byResource[name], id)
		}
	})
	return byResource
}

// UnitVariables returns environment variables that name the resource units that a job holds.
func (k *Keeper) UnitVariables(j *queue.Job) (env []string) {
	all := k.Current().ResourcesByName()
	byResource := k.UnitNames(j)
	for _, name := range slices.Sorted(maps.Keys(byResource)) {
		list := strings.Join(byResource[name], ",")
		env = append(env, "QUEUECTL_RESOURCE_"+variableNamePart(name)+"="+list)
		if also := all[name].EnvVariable; also != "" {
			env = append(env, also+"="+list)
		}
	}
	return env
}

// variableNamePart converts the name of a resource to the part of a variable name that represents it.
func variableNamePart(resource string) string {
	return strings.NewReplacer(".", "_", "@", "_", "/", "_", "-", "_").Replace(strings.ToUpper(resource))
}
