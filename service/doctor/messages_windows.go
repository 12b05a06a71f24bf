package doctor

const createAccountCommands = "net localgroup NAME /add, net user NAME /add"

const endHungRunnerAdvice = "if the runner hangs: taskkill /F /PID %d (its jobs are then treated as lost)"

const findHungRunnerAdvice = "find its pid in the Task Manager (command line: queuectl runner); " +
	"then end it there (its jobs " +
	"are then treated as lost)"
