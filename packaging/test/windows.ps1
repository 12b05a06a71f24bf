# The MSI on a real Windows, from the first installation to its removal, with jobs running
# through most of it: what packaging/test/wine-install.sh shows under Wine, and what Wine
# cannot. In an elevated prompt of a machine where queuectl was never installed, or may be
# taken away with its queue:
#   packaging\test\windows.ps1 -Old queuectl_0.9.1_amd64.msi -New queuectl_0.9.2_amd64.msi
param(
    [Parameter(Mandatory)] [string] $Old,
    [Parameter(Mandatory)] [string] $New
)
Set-StrictMode -Version 2
$ErrorActionPreference = 'Continue' # what programs say on stderr is no error here

$OldVersion = ([regex]'_([^_]+)_[^_]+\.msi$').Match($Old).Groups[1].Value
$NewVersion = ([regex]'_([^_]+)_[^_]+\.msi$').Match($New).Groups[1].Value
$Program = "$env:ProgramFiles\queuectl\queuectl.exe"
$State = "$env:ProgramData\queuectl"
$Jobs = "$env:PUBLIC\queuectl-test"
$EventSource = 'HKLM:\SYSTEM\CurrentControlSet\Services\EventLog\Application\queuectl'
$script:Passed = 0
$script:Failed = 0

# --- words

# Promise holds if the block throws nothing.
function Promise([string] $Text, [scriptblock] $Check) {
    try {
        & $Check | Out-Null
        $script:Passed++
        Write-Host "ok   $Text"
    } catch {
        $script:Failed++
        Write-Host "FAIL $Text"
        Write-Host "     | $_"
    }
}
function Same($Want, $Got) { if ("$Want" -cne "$Got") { throw "want: $Want; got: $Got" } }
function Says([string] $Pattern, $Got) { if ("$Got" -notmatch $Pattern) { throw "want: $Pattern; got: $Got" } }
function Holds([string] $What, $Got) { if (-not $Got) { throw "it does not hold that $What" } }
# Within repeats a block until it throws nothing; what it throws at last is what counts.
function Within([int] $Seconds, [scriptblock] $Check) {
    $end = (Get-Date).AddSeconds($Seconds)
    while ($true) {
        try { return & $Check } catch { if ((Get-Date) -gt $end) { throw } }
        Start-Sleep -Milliseconds 100
    }
}

# Q is the program, Ask the same where it must end with 0.
function Q { (& $Program @args 2>&1 | ForEach-Object { "$_" }) -join "`n" }
function Ask {
    $said = Q @args
    if ($LASTEXITCODE -ne 0) { throw "queuectl ${args}: exit code ${LASTEXITCODE}: $said" }
    $said
}
function Job([string] $Id) { Ask show $Id --json | ConvertFrom-Json }
function InState([string] $Id, [string] $State) { Same $State (Job $Id).state }
function Status { Ask status --json | ConvertFrom-Json }
function Service { Get-CimInstance Win32_Service -Filter "Name='queuectl'" }
function Up { Within 20 { Status } }
function VersionIs([string] $Version) { Same "queuectl $Version" (Ask version); Says ([regex]::Escape($Version)) (Ask status --json) }
function Processes([string] $Pattern) { @(Get-CimInstance Win32_Process | Where-Object { "$($_.CommandLine)" -match $Pattern -and $_.ProcessId -ne $PID }) }
function NoProcess([string] $Pattern) { Same '' ((Processes $Pattern | ForEach-Object CommandLine) -join '; ') }
function MachinePath { [Environment]::GetEnvironmentVariable('Path', 'Machine') -split ';' | Where-Object { $_ -match 'queuectl' } }
function Products {
    @(Get-ItemProperty 'HKLM:\SOFTWARE\Microsoft\Windows\CurrentVersion\Uninstall\*' |
            Where-Object { $_.PSObject.Properties['DisplayName'] -and $_.DisplayName -eq 'queuectl' })
}
# Installer runs msiexec without a question, and returns its exit code.
function Installer([string] $Word, [string] $Package) {
    $log = "$Jobs\msi-$([IO.Path]::GetFileNameWithoutExtension($Package))-$($Word.Trim('/')).log"
    $p = Start-Process msiexec.exe -Wait -PassThru -ArgumentList $Word, "`"$Package`"", '/qn', '/norestart', '/l*v', "`"$log`""
    $p.ExitCode
}

# Long is a job that runs until EndJob, and ends with the code.
function Long([string] $Id, [int] $Code) {
    Remove-Item "$Jobs\end-$Id" -ErrorAction SilentlyContinue
    Ask enqueue --id $Id --max-retries 0 "$Jobs\long.cmd $Id $Code"
    Within 15 { InState $Id processing }
}
function EndJob([string] $Id) { New-Item -ItemType File "$Jobs\end-$Id" -Force | Out-Null }
function Began([string] $Id) { @(Get-Content "$Jobs\began-$Id").Count }
# Seen is the process of a job, told from all others of its number by when it began.
function Seen([string] $Id) {
    $j = Job $Id
    $p = Get-Process -Id $j.pid -ErrorAction Stop
    "$($j.state) $($j.pid) $($p.StartTime.Ticks) $(Began $Id)"
}
# Whole: it ended with its own code, in one attempt, with all of its output.
function Whole([string] $Id, [int] $Code) {
    Within 20 { InState $Id dead }
    $j = Job $Id
    Same "$Code 1 1" "$($j.exit_code) $($j.attempts) $(@($j.history).Count)"
    Says "begun $Id" (Ask logs $Id)
    Says "ended $Id" (Ask logs $Id)
}

# --- before

$me = New-Object Security.Principal.WindowsPrincipal ([Security.Principal.WindowsIdentity]::GetCurrent())
if (-not $me.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) { throw 'this needs an elevated prompt' }
if (Service) { throw 'queuectl is a service of this machine already' }
$Old = (Resolve-Path $Old).Path
$New = (Resolve-Path $New).Path
Remove-Item $Jobs, $State -Recurse -Force -ErrorAction SilentlyContinue
New-Item -ItemType Directory $Jobs | Out-Null
Set-Content -Encoding ASCII "$Jobs\long.cmd" @(
    '@echo off', 'cd /d %~dp0', 'echo x>>began-%1', 'echo begun %1', ':again', 'if exist end-%1 goto end',
    'ping -n 2 127.0.0.1 >nul', 'goto again', ':end', 'echo ended %1', 'exit %2')

# --- installed

Promise 'the MSI installs without a question' { Same 0 (Installer /i $Old) }
Promise 'the service manager has started the service' { Same Running (Service).State }
Promise 'it answers on the pipe' { Up }
if ($script:Failed) { Get-Content "$Jobs\*.log" -Tail 200; exit 1 }
& icacls.exe $Jobs /grant 'NT SERVICE\queuectl:(OI)(CI)M' | Out-Null
Promise 'it is the old version' { VersionIs $OldVersion }
Promise 'Windows shows the version of the program' { Says "^$([regex]::Escape($OldVersion))" (Get-Item $Program).VersionInfo.FileVersion }
Promise 'PATH names it once' { Same 1 (@(MachinePath).Count) }
Promise 'the service begins with the machine' { Same Auto (Service).StartMode }
Promise 'it runs as an account of its own' {
    Same 'NT SERVICE\queuectl' (Service).StartName
    $p = Get-CimInstance Win32_Process -Filter "ProcessId=$((Service).ProcessId)"
    Same queuectl (Invoke-CimMethod $p GetOwner).User
}
Promise 'the path of the program is quoted' { Says '^"[^"]*\\queuectld\.exe" serve --service ' (Service).PathName }
Promise 'a service that fails is started again' { Says 'RESTART' (& sc.exe qfailure queuectl | Out-String) }
Promise '... also if it ends by itself with an error' { Says 'TRUE' (& sc.exe qfailureflag queuectl | Out-String) }
Promise 'it has time for its jobs when the machine goes down' { Says '180000' (& sc.exe qpreshutdown queuectl | Out-String) }
Promise 'the event log knows it' { Holds 'there is a source' (Test-Path $EventSource) }
Promise '... and says what it said' {
    $found = Within 10 { Get-WinEvent -FilterHashtable @{ LogName = 'Application'; ProviderName = 'queuectl' } -MaxEvents 1 -ErrorAction Stop }
    Holds 'the message is whole' ($found.Message -and $found.Message -notmatch 'cannot be found')
}
Promise 'its folder is for it, the system and administrators' {
    $acl = Get-Acl $State
    Holds 'nothing is inherited' $acl.AreAccessRulesProtected
    $who = $acl.Access | ForEach-Object { $_.IdentityReference.Translate([Security.Principal.SecurityIdentifier]).Value } | Sort-Object -Unique
    $may = 'S-1-5-18', 'S-1-5-32-544', (New-Object Security.Principal.NTAccount 'NT SERVICE\queuectl').Translate([Security.Principal.SecurityIdentifier]).Value
    Same '' (($who | Where-Object { $may -notcontains $_ }) -join ' ')
}
Promise 'nobody else can listen on its pipe' {
    $taken = $false
    try { (New-Object IO.Pipes.NamedPipeServerStream 'queuectl').Dispose() } catch { $taken = $true }
    Holds 'the name is taken' $taken
}
Promise 'a client in PowerShell is answered' {
    Import-Module "$PSScriptRoot\..\..\docs\Queuectl.psm1" -Force
    Holds 'workers are told' (Invoke-Queuectl status).workers.total
}
Promise 'PowerShell completes its verbs' {
    $env:Path = "$env:ProgramFiles\queuectl;$env:Path"
    . "$env:ProgramFiles\queuectl\completion.ps1"
    Says '\benqueue\b' (([Management.Automation.CommandCompletion]::CompleteInput('queuectl enq', 12, $null)).CompletionMatches.CompletionText -join ' ')
}
Add-Content "$State\queuectl.toml" '# by hand'

# --- jobs

Promise 'a job prints' { Same hello (Ask run 'echo hello') }
Promise 'it runs as the account of the service' { Same 'nt service\queuectl' (Ask run whoami) }
Promise 'its runner is a program of its own name in Program Files, and none is below ProgramData' {
    Holds 'it runs' (@(Get-CimInstance Win32_Process | Where-Object { "$($_.ExecutablePath)" -like "$env:ProgramFiles\queuectl\runner\queuectl-*.exe" }).Count)
    Same 0 (@(Get-ChildItem $State -Recurse -Filter *.exe).Count)
}
Promise 'PowerShell runs a job' { Same 42 (Ask run --shell 'powershell -Command' 'Write-Output (6*7)') }
Promise 'a job passes its exit code on' { Q run --max-retries 0 'exit 7'; Same 7 $LASTEXITCODE }
Promise 'an exit code has 32 bits' {
    Ask enqueue --id code --max-retries 0 'exit -1073741819'
    Within 10 { InState code dead }
    Same 3221225477 (Job code).exit_code
}
Promise 'a failing job is retried, and dead at last' {
    Ask enqueue --id failing --max-retries 2 --backoff-base 0.1 'exit 3'
    Within 20 { InState failing dead }
    $j = Job failing
    Same '3 3 3' "$($j.exit_code) $($j.attempts) $(@($j.history).Count)"
    Says failing (Ask dlq list -q)
}
Promise 'a timeout ends a tree of three' {
    Ask enqueue --id tree --max-retries 0 --kill-after 1s --timeout 6 'cmd /c cmd /c ping -n 60 127.0.0.77'
    Within 6 { Holds 'there are three' (@(Processes '127\.0\.0\.77').Count -ge 3) }
    Within 20 { InState tree dead }
    Same timed_out (Job tree).reason
    Within 2 { NoProcess '127\.0\.0\.77' }
}
Promise 'worker scale' {
    foreach ($n in 3, 2) {
        Ask worker scale $n
        Same $n (Status).workers.total
    }
}

# --- killed: the service manager starts it again by itself

Promise 'a long job begins' { Long one 11 }
$before = Seen one
$pidBefore = (Service).ProcessId
Stop-Process -Id $pidBefore -Force
Promise 'the service is back by itself when it was killed' { Within 20 { Holds 'it is another process' ((Service).ProcessId -notin 0, $pidBefore) } }
Promise 'it answers' { Up }
Promise 'it has adopted the job' { Within 10 { Same $before (Seen one) } }
EndJob one
Promise 'the job ends as itself' { Whole one 11 }

# --- upgraded

Promise 'another long job begins' { Long two 12 }
$before = Seen two
Promise 'the newer MSI installs while it runs, and asks for no restart' { Same 0 (Installer /i $New) }
Promise 'the service manager has started the service' { Same Running (Service).State }
Promise 'it answers' { Up }
Promise 'it is the new version' { VersionIs $NewVersion }
Promise 'the job has not noticed' { Within 10 { Same $before (Seen two) } }
Promise 'changed settings stay' { Says 'by hand' (Get-Content "$State\queuectl.toml" -Raw) }
Promise 'it runs as its own account still' { Same 'NT SERVICE\queuectl' (Service).StartName }
Promise 'the program of the old runner is there while it has a job' { Same 2 (@(Get-ChildItem "$env:ProgramFiles\queuectl\runner" -Filter *.exe).Count) }
Promise 'a service that fails is still started again' { Says 'RESTART' (& sc.exe qfailure queuectl | Out-String) }
EndJob two
Promise 'the new service records its end' { Whole two 12 }
Promise 'jobs of before are known' { InState failing dead }
Promise 'one version is installed' { Same 1 (@(Products).Count) }
Promise 'PATH still names it once' { Same 1 (@(MachinePath).Count) }
Promise 'an older MSI is refused' { Same 1603 (Installer /i $Old) }
Promise '... and the newer one stays' { VersionIs $NewVersion }
Promise 'another long job begins' { Long mended 15 }
$before = Seen mended
Promise 'the same MSI again mends what was taken away' {
    Remove-Item "$env:ProgramFiles\queuectl\README.md"
    $p = Start-Process msiexec.exe -Wait -PassThru -ArgumentList '/fa', "`"$New`"", '/qn', '/norestart'
    Same 0 $p.ExitCode
    Holds 'the page is back' (Test-Path "$env:ProgramFiles\queuectl\README.md")
    Up
    Says 'by hand' (Get-Content "$State\queuectl.toml" -Raw)
}
Promise '... and takes away the program of the old runner' { Same 1 (@(Get-ChildItem "$env:ProgramFiles\queuectl\runner" -Filter *.exe).Count) }
Promise '... while jobs run' { Within 10 { Same $before (Seen mended) } }
EndJob mended
Promise '... and are recorded' { Whole mended 15 }

# --- stopped

Promise 'a job that ends soon begins' { Long three 13 }
Start-Process -WindowStyle Hidden cmd.exe -ArgumentList '/c', "ping -n 4 127.0.0.1 >nul & echo x> $Jobs\end-three"
Promise 'a stop waits for it' { Stop-Service queuectl -ErrorAction Stop; Same Stopped (Service).State }
Promise 'no process of the queue is left' { Within 5 { NoProcess 'queuectld?\.exe|queuectl-[0-9a-f]+\.exe|long\.cmd' } }
Promise 'it starts again' { Start-Service queuectl -ErrorAction Stop; Up }
Promise 'the job had ended as itself' { Whole three 13 }
Promise 'a job that does not end begins' { Ask config set stop_timeout 2s; Long four 14 }
Promise 'a stop ends it, with all of its processes' {
    Stop-Service queuectl -ErrorAction Stop
    Within 5 { NoProcess 'queuectld?\.exe|queuectl-[0-9a-f]+\.exe|long\.cmd' }
}
Promise 'it starts again' { Start-Service queuectl -ErrorAction Stop; Up }
Promise 'the job was given back, and runs anew' {
    Within 20 { InState four processing; Same 2 (Began four) }
    Same 0 (Job four).attempts
}

# --- removed

Promise 'it is removed while the job runs' { Same 0 (Installer /x $New) }
Promise 'no process is left' { Within 5 { NoProcess 'queuectld?\.exe|queuectl-[0-9a-f]+\.exe|long\.cmd' } }
Promise 'the service manager does not know it' { Holds 'there is no service' (-not (Service)) }
Promise 'the event log does not' { Holds 'there is no source' (-not (Test-Path $EventSource)) }
Promise 'PATH does not name it' { Same 0 (@(MachinePath).Count) }
Promise 'no product is installed' { Same 0 (@(Products).Count) }
Promise 'its folder is gone' { Holds 'there is none' (-not (Test-Path "$env:ProgramFiles\queuectl")) }
Promise 'no profile of its account is left' {
    Holds 'no folder' (-not (Test-Path "$env:SystemDrive\Users\queuectl"))
    $sid = ((& sc.exe showsid queuectl | Out-String) -split '\s+') -like 'S-1-5-80-*'
    Holds 'no entry' (-not (Test-Path "HKLM:\SOFTWARE\Microsoft\Windows NT\CurrentVersion\ProfileList\$sid"))
}
Promise 'the queue stays' { Holds 'there is a database' (Test-Path "$State\queuectl.db") }
Promise 'settings stay' { Says 'by hand' (Get-Content "$State\queuectl.toml" -Raw) }
Promise 'no program stays beside them' { Same 0 (@(Get-ChildItem $State -Recurse -Filter *.exe).Count) }

Write-Host "windows: $script:Passed ok, $script:Failed failed"
if ($script:Failed) { exit 1 }
