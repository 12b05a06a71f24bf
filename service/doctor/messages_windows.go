package doctor

// createAccountCommands names the commands that create a group or a user.
const createAccountCommands = "net localgroup NAME /add, net user NAME /add"

// endHungRunnerAdviceFormat is the format of advice about a runner that hangs. The argument is the runner's pid.
const endHungRunnerAdviceFormat = "if the runner hangs: taskkill /F /PID %d (its jobs are then treated as lost)"

// findHungRunnerAdvice is the advice about a runner that hangs and whose pid is unknown.
const findHungRunnerAdvice = "find its pid in the Task Manager (command line: queuectl runner); " +
	"then end it there (its jobs " +
	"are then treated as lost)"
