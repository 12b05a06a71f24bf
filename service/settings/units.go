package settings

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// ResourceUnitNames returns the ids of the resource units that a job holds, by resource. A resource, such as "gpu",
// consists of several equal units. Each unit has an id.
func (k *Keeper) ResourceUnitNames(j *queue.Job) (unitNamesByResource map[string][]string) {
	if j.HeldUnits == "" {
		return nil
	}
	unitNamesByResource = map[string][]string{}
	all := k.CurrentConfig().ResourcesByName()
	queue.ParseResourceUnits(j.HeldUnits, func(name string, units []int) {
		ids := all[name].UnitIDs
		for _, u := range units {
			id := strconv.Itoa(u)
			if u < len(ids) {
				id = ids[u]
			}
			unitNamesByResource[name] = append(unitNamesByResource[name], id)
		}
	})
	return unitNamesByResource
}

// ResourceUnitEnvVars returns environment variables that name the resource units that a job holds.
func (k *Keeper) ResourceUnitEnvVars(j *queue.Job) (env []string) {
	all := k.CurrentConfig().ResourcesByName()
	byResource := k.ResourceUnitNames(j)
	for _, name := range slices.Sorted(maps.Keys(byResource)) {
		list := strings.Join(byResource[name], ",")
		env = append(env, "QUEUECTL_RESOURCE_"+resourceEnvVarName(name)+"="+list)
		if also := all[name].EnvVariable; also != "" {
			env = append(env, also+"="+list)
		}
	}
	return env
}

// resourceEnvVarName converts the name of a resource to a part of the name of an environment variable.
func resourceEnvVarName(resource string) string {
	return strings.NewReplacer(".", "_", "@", "_", "/", "_", "-", "_").Replace(strings.ToUpper(resource))
}
