# Tests the MSI on a real Windows, from the first installation to its removal; jobs are running
# during most of the test. It tests the same as packaging/test/wine-install.sh, and functions
# that Wine lacks. Run it in an elevated prompt, on a machine where queuectl is not installed
# and where a queue that an earlier installation left may be deleted:
#   packaging\test\windows.ps1 -Old queuectl_0.9.1_amd64.msi -New queuectl_0.9.2_amd64.msi
# It runs in Windows PowerShell 5.1 and PowerShell 7. The directory -Logs must be new or empty. It
# receives the logs of the service, the installer and Windows, also after a failure.
param(
    [Parameter(Mandatory)] [string] $Old,
    [Parameter(Mandatory)] [string] $New,
    [string] $Logs = "$env:PUBLIC\queuectl-logs"
)
Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'

$OldVersion = ([regex]'_([^_]+)_[^_]+\.msi$').Match($Old).Groups[1].Value
$NewVersion = ([regex]'_([^_]+)_[^_]+\.msi$').Match($New).Groups[1].Value
$Program = "$env:ProgramFiles\queuectl\queuectl.exe"
$State = "$env:ProgramData\queuectl"
$Jobs = "$env:PUBLIC\queuectl-test"
$Probe = "$env:ProgramData\queuectl-probe"
$script:Identifies = $false # whether AppLocker's service ran before
$EventSource = 'HKLM:\SYSTEM\CurrentControlSet\Services\EventLog\Application\queuectl'
$ProcessesOfQueue = 'queuectld?\.exe|queuectl-[0-9a-f]+\.exe|long\.cmd'
$Eve = 'queuectl-eve' # an ordinary user, created and removed by this script
$Group = 'queuectl'   # the group that the default settings admit; created and removed by this script
$script:ServiceSid = '' # SID of the service's account, after the installation
$script:Passed = 0
$script:Failed = 0
$script:Skipped = 0
$script:Code = 0      # exit code of the last program that Q or AsEve ran
$script:Installed = 0 # number of installer runs, used in the names of its logs

# --- helpers

# Promise holds if the block throws nothing.
function Promise([string] $Text, [scriptblock] $Check) {
    try {
        & $Check | Out-Null
        $script:Passed++
        Write-Output "ok   $Text"
    } catch {
        $script:Failed++
        Write-Output "FAIL $Text"
        Write-Output "     | $_"
    }
}
function Same($Want, $Got) { if ("$Want" -cne "$Got") { throw "want: $Want; got: $Got" } }
function Says([string] $Pattern, $Got) { if ("$Got" -notmatch $Pattern) { throw "want: $Pattern; got: $Got" } }
function Holds([string] $What, $Got) { if (-not $Got) { throw "this is not true: $What" } }
# Within repeats a block until it throws nothing. After that time, the last error counts.
function Within([int] $Seconds, [scriptblock] $Check) {
    $end = (Get-Date).AddSeconds($Seconds)
    while ($true) {
        try { return & $Check } catch { if ((Get-Date) -gt $end) { throw } }
        Start-Sleep -Milliseconds 100
    }
}

# Native runs a program and returns its output; it throws if the exit code is not 0. Where errors
# stop a script, Windows PowerShell would stop at the first redirected line of stderr.
function Native {
    $ErrorActionPreference = 'Continue'
    $file = $args[0]
    $words = @($args | Select-Object -Skip 1)
    $said = (& $file @words 2>&1 | ForEach-Object { "$_" }) -join "`n"
    if ($LASTEXITCODE -ne 0) { throw "$file ${words}: exit code ${LASTEXITCODE}: $said" }
    $said
}
# Q runs queuectl and stores its exit code in $script:Code. Ask does the same and throws if the code is
# not 0. Callers quote words like '1s', because PowerShell 7 reads 1s as a number.
function Q {
    $ErrorActionPreference = 'Continue'
    (& $Program @args 2>&1 | ForEach-Object { "$_" }) -join "`n"
    $script:Code = $LASTEXITCODE
}
function Ask {
    $said = Q @args
    if ($script:Code -ne 0) { throw "queuectl ${args}: exit code ${script:Code}: $said" }
    $said
}
# Ended checks the exit code and the output of the program that Q or AsEve ran last.
function Ended([int] $Want, [string] $Pattern, $Got) {
    if ($script:Code -ne $Want) { throw "want: exit code $Want; got: ${script:Code}: $Got" }
    Says $Pattern $Got
}
function ReadJob([string] $Id) { Ask show $Id --json | ConvertFrom-Json }
function InState([string] $Id, [string] $State) { Same $State (ReadJob $Id).state }
function ReadStatus { Ask status --json | ConvertFrom-Json }
function ReadService { Get-CimInstance Win32_Service -Filter "Name='queuectl'" }
function Up { Within 20 { ReadStatus } }
function VersionIs([string] $Version) { Same "queuectl $Version" (Ask version); Says ([regex]::Escape($Version)) (Ask status --json) }
function Processes([string] $Pattern) { @(Get-CimInstance Win32_Process | Where-Object { "$($_.CommandLine)" -match $Pattern -and $_.ProcessId -ne $PID }) }
function NoProcess([string] $Pattern) { Same '' ((Processes $Pattern | ForEach-Object { $_.CommandLine }) -join '; ') }
function MachinePath { [Environment]::GetEnvironmentVariable('Path', 'Machine') -split ';' | Where-Object { $_ -match 'queuectl' } }
function Products {
    @(Get-ItemProperty 'HKLM:\SOFTWARE\Microsoft\Windows\CurrentVersion\Uninstall\*' |
            Where-Object { $_.PSObject.Properties['DisplayName'] -and $_.DisplayName -eq 'queuectl' })
}
function SidOf([string] $Name) { (New-Object Security.Principal.NTAccount $Name).Translate([Security.Principal.SecurityIdentifier]).Value }
function IsKnown([string] $Name) { try { [bool](SidOf $Name) } catch { $false } }

# Installer runs msiexec silently and returns its exit code.
function Installer([string] $Word, [string] $Package) {
    $script:Installed++
    $log = "$Logs\msi-$($script:Installed)-$([IO.Path]::GetFileNameWithoutExtension($Package))-$($Word.Trim('/')).log"
    $p = Start-Process msiexec.exe -Wait -PassThru -ArgumentList $Word, "`"$Package`"", '/qn', '/norestart', '/l*v', "`"$log`""
    $p.ExitCode
}
# Call calls a method of a COM object that has no type information for PowerShell.
function Call($Object, [string] $Method, [object[]] $With) {
    $Object.GetType().InvokeMember($Method, [Reflection.BindingFlags]::InvokeMethod, $null, $Object, $With)
}
# Broken returns a copy of an MSI whose installation fails after the files are installed.
function Broken([string] $Package) {
    $copy = "$Jobs\broken.msi"
    Copy-Item -LiteralPath $Package -Destination $copy -Force
    $installer = New-Object -ComObject WindowsInstaller.Installer
    $database = Call $installer OpenDatabase @($copy, 1) # msiOpenDatabaseModeTransact
    $view = Call $database OpenView @("UPDATE ``CustomAction`` SET ``Target`` = 'service no-such-verb' WHERE ``Action`` = 'Prepare'")
    Call $view Execute $null | Out-Null
    Call $view Close $null | Out-Null
    Call $database Commit $null | Out-Null
    foreach ($object in $view, $database, $installer) { [Runtime.InteropServices.Marshal]::ReleaseComObject($object) | Out-Null }
    $copy
}

# Long starts a job that runs until EndJob and then exits with the code.
function Long([string] $Id, [int] $Code) {
    Remove-Item "$Jobs\end-$Id" -ErrorAction SilentlyContinue
    Ask enqueue --id $Id --max-retries 0 "$Jobs\long.cmd $Id $Code"
    Within 15 { InState $Id processing }
}
function EndJob([string] $Id) { New-Item -ItemType File "$Jobs\end-$Id" -Force | Out-Null }
function Began([string] $Id) { @(Get-Content "$Jobs\began-$Id").Count }
# Seen identifies the process of a job. The start time distinguishes it from later processes with the same pid.
function Seen([string] $Id) {
    $j = ReadJob $Id
    $p = Get-Process -Id $j.pid
    "$($j.state) $($j.pid) $($p.StartTime.Ticks) $(Began $Id)"
}
# Whole checks that the job ended with the code, in one attempt, with its complete output.
function Whole([string] $Id, [int] $Code) {
    Within 20 { InState $Id dead }
    $j = ReadJob $Id
    Same "$Code 1 1" "$($j.exit_code) $($j.attempts) $(@($j.history).Count)"
    Says "begun $Id" (Ask logs $Id)
    Says "ended $Id" (Ask logs $Id)
}

# AsEve runs a program as the ordinary user and returns its output; the exit code is in $script:Code.
function AsEve([string] $File, [string] $Words) {
    $start = New-Object Diagnostics.ProcessStartInfo $File, $Words
    $start.UserName, $start.Domain, $start.Password = $Eve, $env:COMPUTERNAME, $script:Secret
    $start.LoadUserProfile, $start.UseShellExecute, $start.CreateNoWindow = $true, $false, $true
    $start.RedirectStandardOutput, $start.RedirectStandardError = $true, $true
    $start.WorkingDirectory = $Jobs
    $p = [Diagnostics.Process]::Start($start)
    $out = $p.StandardOutput.ReadToEndAsync()
    $err = $p.StandardError.ReadToEndAsync()
    if (-not $p.WaitForExit(60000)) {
        $p.Kill()
        throw "$File ${Words}: the program has not ended within a minute"
    }
    $script:Code = $p.ExitCode
    "$($out.Result)$($err.Result)".Trim()
}
# PowerShellAsEve runs a line of Windows PowerShell, without double quotes, as the ordinary user.
function PowerShellAsEve([string] $Line) {
    AsEve "$env:SystemRoot\System32\WindowsPowerShell\v1.0\powershell.exe" "-NoProfile -NonInteractive -ExecutionPolicy Bypass -Command `"$Line`""
}
# NewEve creates the ordinary user. For a password of more than 14 characters, net.exe would prompt.
function NewEve {
    $word = "Q1a!$([guid]::NewGuid().ToString('N').Substring(0, 8))"
    Native net.exe user $Eve $word /add
    $script:Secret = New-Object Security.SecureString
    foreach ($c in $word.ToCharArray()) { $script:Secret.AppendChar($c) }
}
# RemoveEve removes the user, the group, and the profile directory that Windows created for the user.
function RemoveEve {
    if (IsKnown $Eve) {
        $sid = SidOf $Eve
        Native net.exe user $Eve /delete
        Attempt 'remove the directory of the user' { Get-CimInstance Win32_UserProfile -Filter "SID='$sid'" | Remove-CimInstance }
    }
    if (IsKnown "$env:COMPUTERNAME\$Group") { Native net.exe localgroup $Group /delete }
}

# OnlyOurs checks that an access list admits only the system, administrators and the service's account,
# and that one of them owns the object. Entries for S-1-3-4 (OWNER RIGHTS) then mean one of them too.
function OnlyOurs([string] $What, $Acl) {
    $sid = [Security.Principal.SecurityIdentifier]
    $may = 'S-1-5-18', 'S-1-5-32-544', $script:ServiceSid
    $owner = $Acl.GetOwner($sid).Value
    if ($may -notcontains $owner) { throw "$What belongs to $owner" }
    $rules = @($Acl.GetAccessRules($true, $true, $sid))
    if ($rules.Count -eq 0) { throw "$What has no access list, or an empty access list" }
    $others = @($rules | Where-Object { "$($_.AccessControlType)" -eq 'Allow' } | ForEach-Object { $_.IdentityReference.Value } | Where-Object { ($may + 'S-1-3-4') -notcontains $_ })
    if ($others.Count) { throw "$What gives access to $others" }
}
# PipeAcl returns the access list of the service's pipe. .NET and the .NET Framework have different methods for it.
function PipeAcl {
    $pipe = New-Object IO.Pipes.NamedPipeClientStream '.', 'queuectl', ([IO.Pipes.PipeDirection]::InOut), ([IO.Pipes.PipeOptions]::None), ([Security.Principal.TokenImpersonationLevel]::Identification)
    try {
        $pipe.Connect(5000)
        if ($pipe.PSObject.Methods['GetAccessControl']) { return $pipe.GetAccessControl() }
        [IO.Pipes.PipesAclExtensions]::GetAccessControl($pipe)
    } finally {
        $pipe.Dispose()
    }
}
# Privileges returns the names of privileges in a text.
function Privileges([string] $Text) { @([regex]::Matches($Text, 'Se\w+Privilege') | ForEach-Object { $_.Value } | Sort-Object -Unique) -join ' ' }

# MayRun reports whether a program starts. If it does not, a policy must be the reason (error 1260).
function MayRun([string] $File) {
    $start = New-Object Diagnostics.ProcessStartInfo $File
    $start.UseShellExecute, $start.CreateNoWindow = $false, $true
    try {
        [Diagnostics.Process]::Start($start).WaitForExit()
        $true
    } catch {
        $why = $_.Exception.GetBaseException()
        if (-not ($why -is [ComponentModel.Win32Exception]) -or $why.NativeErrorCode -ne 1260) { throw }
        $false
    }
}
# SetRules forbids programs in two directories below ProgramData, for services too: without the extension,
# AppLocker's rules apply only to users. Other directories of ProgramData contain programs that Windows needs.
function SetRules {
    Set-Content -Encoding ASCII "$Jobs\rules.xml" @'
<AppLockerPolicy Version="1">
  <RuleCollection Type="Exe" EnforcementMode="Enabled">
    <FilePathRule Id="5d1c1f3e-6c0f-4d6c-9a55-5f1d9e1e8a01" Name="all" Description="" UserOrGroupSid="S-1-1-0" Action="Allow">
      <Conditions><FilePathCondition Path="*" /></Conditions>
    </FilePathRule>
    <FilePathRule Id="5d1c1f3e-6c0f-4d6c-9a55-5f1d9e1e8a02" Name="state" Description="" UserOrGroupSid="S-1-1-0" Action="Deny">
      <Conditions><FilePathCondition Path="%OSDRIVE%\ProgramData\queuectl\*" /></Conditions>
    </FilePathRule>
    <FilePathRule Id="5d1c1f3e-6c0f-4d6c-9a55-5f1d9e1e8a03" Name="probe" Description="" UserOrGroupSid="S-1-1-0" Action="Deny">
      <Conditions><FilePathCondition Path="%OSDRIVE%\ProgramData\queuectl-probe\*" /></Conditions>
    </FilePathRule>
    <RuleCollectionExtensions>
      <ThresholdExtensions><Services EnforcementMode="Enabled" /></ThresholdExtensions>
      <RedstoneExtensions><SystemApps Allow="Enabled" /></RedstoneExtensions>
    </RuleCollectionExtensions>
  </RuleCollection>
</AppLockerPolicy>
'@
    if (-not (Test-Path "$Jobs\rules-before.xml")) { Set-Content -Encoding Unicode "$Jobs\rules-before.xml" (Get-AppLockerPolicy -Local -Xml) }
    Set-AppLockerPolicy -XmlPolicy "$Jobs\rules.xml"
    $script:Identifies = (Get-Service AppIDSvc).Status -eq 'Running'
    Native appidtel.exe start | Out-Null
}
function ResetRules {
    if (Test-Path "$Jobs\rules-before.xml") {
        Set-AppLockerPolicy -XmlPolicy "$Jobs\rules-before.xml"
        Remove-Item "$Jobs\rules-before.xml"
        if (-not $script:Identifies) { Native appidtel.exe stop | Out-Null }
    }
    Remove-Item $Probe -Recurse -Force -ErrorAction SilentlyContinue
}
function RestartService {
    Stop-Service queuectl
    Start-Service queuectl
    Up | Out-Null
}

# Attempt runs one step of a clean-up. If it fails, it only prints a warning, so that the other steps run.
function Attempt([string] $What, [scriptblock] $Do) {
    try { & $Do | Out-Null } catch { Write-Warning "${What}: $_" }
}
function Collect {
    foreach ($log in 'Application', 'System', 'Microsoft-Windows-AppLocker/EXE and DLL') {
        Attempt "export $log" { Native wevtutil.exe epl $log "$Logs\$($log -replace '[^A-Za-z-]', '-').evtx" /ow:true }
    }
    Attempt 'copy the logs' {
        foreach ($dir in $State, "$LongTemp\own") {
            $to = New-Item -ItemType Directory -Force "$Logs\$(Split-Path $dir -Leaf)"
            Copy-Item "$dir\*.log", "$dir\*.toml" $to -ErrorAction SilentlyContinue
        }
    }
}

# --- preparation

$me = New-Object Security.Principal.WindowsPrincipal ([Security.Principal.WindowsIdentity]::GetCurrent())
if (-not $me.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) { throw 'run this script in an elevated prompt' }
if (ReadService) { throw 'queuectl is already installed as a service; remove it first' }
foreach ($name in $Eve, "$env:COMPUTERNAME\$Group") { if (IsKnown $name) { throw "the account $name already exists on this machine; remove it first" } }
$Old = (Resolve-Path $Old).Path
$New = (Resolve-Path $New).Path
if ((Test-Path $Logs) -and @(Get-ChildItem $Logs -Force).Count) { throw "$Logs is not empty; choose another directory with -Logs" }
ResetRules # in case an earlier run was interrupted
Remove-Item $Jobs, $State -Recurse -Force -ErrorAction SilentlyContinue
New-Item -ItemType Directory -Force $Jobs, $Logs, "$Jobs\temporary files" | Out-Null
$Logs = (Resolve-Path $Logs).Path
Native icacls.exe $Jobs /grant '*S-1-5-32-545:(OI)(CI)RX' | Out-Null # users can read it
Copy-Item "$PSScriptRoot\..\..\docs\Queuectl.psm1" $Jobs
Set-Content -Encoding ASCII "$Jobs\long.cmd" @(
    '@echo off', 'cd /d %~dp0', 'echo x>>began-%1', 'echo begun %1', ':again', 'if exist end-%1 goto end',
    'ping -n 2 127.0.0.1 >nul', 'goto again', ':end', 'echo ended %1', 'exit %2')
# The whole test uses a TEMP with a short name, if the drive creates short names.
$LongTemp = (Resolve-Path "$Jobs\temporary files").Path
$env:TEMP = (New-Object -ComObject Scripting.FileSystemObject).GetFolder($LongTemp).ShortPath
$env:TMP = $env:TEMP

try {
    # --- installed

    Promise 'the MSI installs silently' { Same 0 (Installer /i $Old) }
    Promise 'the service manager has started the service' { Same Running (ReadService).State }
    Promise 'the service answers on the pipe' { Up }
    if ($script:Failed) { throw 'the installation failed; see the logs' }
    $script:ServiceSid = ([regex]'S-1-5-80(-\d+){5}').Match((Native sc.exe showsid queuectl)).Value
    Native icacls.exe $Jobs /grant "*$($script:ServiceSid):(OI)(CI)M" | Out-Null
    Promise 'the old version is installed' { VersionIs $OldVersion }
    Promise 'Windows shows the version of the program' { Says "^$([regex]::Escape($OldVersion))" (Get-Item $Program).VersionInfo.FileVersion }
    Promise 'PATH contains the program''s directory once' { Same 1 (@(MachinePath).Count) }
    Promise 'the service starts at boot' { Same Auto (ReadService).StartMode }
    Promise 'the service runs under its own account' {
        Same $script:ServiceSid (SidOf (ReadService).StartName)
        $p = Get-CimInstance Win32_Process -Filter "ProcessId=$((ReadService).ProcessId)"
        Same $script:ServiceSid (Invoke-CimMethod $p GetOwnerSid).Sid
    }
    Promise 'the service has only the privilege to pass through directories' { Same SeChangeNotifyPrivilege (Privileges (Native sc.exe qprivs queuectl)) }
    Promise 'the path of the program is quoted' { Says '^"[^"]*\\queuectld\.exe" serve --service ' (ReadService).PathName }
    Promise 'a service that fails is started again' { Says 'RESTART' (Native sc.exe qfailure queuectl) }
    Promise '... also if it ends with an error' { Says 'TRUE' (Native sc.exe qfailureflag queuectl) }
    Promise 'the service has time to stop its jobs before a shutdown' { Says '\b180000\b' (Native sc.exe qpreshutdown queuectl) }
    Promise 'the event log has a source for the service' { Holds 'there is a source' (Test-Path $EventSource) }
    Promise '... and shows the service''s messages' {
        $found = Within 10 { Get-WinEvent -FilterHashtable @{ LogName = 'Application'; ProviderName = 'queuectl' } -MaxEvents 1 }
        Same ("$($found.Properties[0].Value)".Trim()) ("$($found.Message)".Trim()) # without the texts of a source, Windows puts its own sentence before the message
    }
    Promise 'only the service, the system and administrators can access the state directory' {
        $acl = Get-Acl -LiteralPath $State
        Holds 'nothing is inherited' $acl.AreAccessRulesProtected
        OnlyOurs $State $acl
    }
    Promise '... and the pipe, before a group gets access' { OnlyOurs 'the pipe' (PipeAcl) }
    Promise 'a client in PowerShell gets an answer' {
        Import-Module "$Jobs\Queuectl.psm1" -Force
        Holds 'the status contains the number of workers' (Invoke-Queuectl status).workers.total
    }
    Promise 'PowerShell completes the commands of queuectl' {
        $ErrorActionPreference = 'Continue' # the program of the completion prints its directive to stderr
        Set-StrictMode -Off # the completion reads key bindings of PSReadLine, which a script's session lacks
        $env:Path = "$env:ProgramFiles\queuectl;$env:Path"
        . "$env:ProgramFiles\queuectl\completion.ps1"
        $found = @([Management.Automation.CommandCompletion]::CompleteInput('queuectl enq', 12, $null).CompletionMatches | ForEach-Object { $_.CompletionText })
        Says '\benqueue\b' ($found -join ' ')
    }
    Add-Content "$State\queuectl.toml" '# by hand'

    # --- jobs

    Promise 'a job prints' { Same hello (Ask run 'echo hello') }
    Promise 'a job runs as the account of the service' { Says ([regex]::Escape($script:ServiceSid)) (Ask run 'whoami /user /fo csv /nh') }
    Promise '... with only the privilege to pass through directories' { Same SeChangeNotifyPrivilege (Privileges (Ask run 'whoami /priv /fo csv /nh')) }
    Promise 'its runner is a separate program in Program Files, and no program is below ProgramData' {
        Holds 'it runs' (@(Get-CimInstance Win32_Process | Where-Object { "$($_.ExecutablePath)" -like "$env:ProgramFiles\queuectl\runner\queuectl-*.exe" }).Count)
        Same 0 (@(Get-ChildItem $State -Recurse -Filter *.exe).Count)
    }
    Promise 'PowerShell runs a job' { Same 42 (Ask run --shell 'powershell -Command' 'Write-Output (6*7)') }
    Promise 'run returns the exit code of its job' { $said = Q run --max-retries 0 'exit 7'; Ended 7 '' $said }
    Promise 'an exit code has 32 bits' {
        Ask enqueue --id code --max-retries 0 'exit -1073741819'
        Within 10 { InState code dead }
        Same 3221225477 (ReadJob code).exit_code
    }
    Promise 'a failing job is retried, and dead at the end' {
        Ask enqueue --id failing --max-retries 2 --backoff-base '0.1' 'exit 3'
        Within 20 { InState failing dead }
        $j = ReadJob failing
        Same '3 3 3' "$($j.exit_code) $($j.attempts) $(@($j.history).Count)"
        Says failing (Ask dlq list -q)
    }
    Promise 'a timeout ends all three processes of a job' {
        Ask enqueue --id tree --max-retries 0 --kill-after '1s' --timeout 6 'cmd /c cmd /c ping -n 60 127.0.0.77'
        Within 6 { Holds 'there are three' (@(Processes '127\.0\.0\.77').Count -ge 3) }
        Within 20 { InState tree dead }
        Same timed_out (ReadJob tree).reason
        Within 2 { NoProcess '127\.0\.0\.77' }
    }
    Promise 'worker scale' {
        foreach ($n in 3, 2) {
            Ask worker scale $n
            Same $n (ReadStatus).workers.total
        }
    }
    Promise 'while a job runs, only they can access the files in the state directory' {
        Long kept 10
        Within 10 { # files come and go
            $files = @(Get-ChildItem -LiteralPath $State -Recurse -Force | ForEach-Object { $_.FullName })
            foreach ($name in "$State\queuectl.db", "$State\queuectl.toml", "$State\service.log", "$State\runner\output") { Holds "there is $name" ($files -contains $name) }
            foreach ($file in $files) { OnlyOurs $file (Get-Acl -LiteralPath $file) }
        }
        EndJob kept
        Whole kept 10
    }

    # --- a user who is not an administrator

    $Listen = "try { (New-Object IO.Pipes.NamedPipeServerStream 'queuectl', 'InOut', -1, 'Message').Dispose(); 'listens' } catch { `$_.Exception.GetBaseException().GetType().Name }"
    Promise 'an ordinary user outside the group is rejected, and the message says who can give access' {
        NewEve
        $said = AsEve $Program 'list'
        Ended 5 'cannot use the pipe .*ask an administrator to admit you' $said
    }
    Promise '... and Windows rejects their PowerShell client' {
        $said = PowerShellAsEve "try { Import-Module '$Jobs\Queuectl.psm1'; (Invoke-Queuectl whoami).right } catch { `$_.Exception.GetBaseException().NativeErrorCode }"
        Ended 0 '^5$' $said
    }
    Promise 'they can read neither the settings nor the queue' {
        foreach ($name in 'queuectl.toml', 'queuectl.db') {
            $said = AsEve cmd.exe "/d /c type `"$State\$name`""
            if ($script:Code -eq 0) { throw "$name is shown: $said" }
        }
    }
    Promise 'in the group, they can enqueue jobs' {
        Native net.exe localgroup $Group /add
        $said = AsEve $Program 'list'
        Ended 5 'cannot use the pipe .*group queuectl' $said
        Native net.exe localgroup $Group $Eve /add
        Ask reload
        $said = AsEve $Program 'run --id eve "echo from eve"'
        Ended 0 'from eve' $said
        Says "$Eve$" (ReadJob eve).user
    }
    Promise '... also with the PowerShell module' {
        $said = PowerShellAsEve "Import-Module '$Jobs\Queuectl.psm1'; (Invoke-Queuectl whoami).right"
        Ended 0 '^submit$' $said
    }
    Promise '... but cannot change settings' {
        $said = AsEve $Program 'config set workers 1'
        Ended 5 '' $said
        Holds 'the number of workers is unchanged' ((ReadStatus).workers.total -eq 2)
    }
    # An administrator succeeds, so the user fails only for lack of the right. The listener is closed before the next client.
    Promise '... and, unlike an administrator, cannot listen on the pipe' {
        Same listens (Native powershell.exe -NoProfile -NonInteractive -Command $Listen)
        $said = PowerShellAsEve $Listen
        Ended 0 '^UnauthorizedAccessException$' $said
        Up
    }

    # --- TEMP with a short name

    if ($env:TEMP -eq $LongTemp) {
        $script:Skipped++
        Write-Output "skip a service in a directory with a short name: the drive of $LongTemp creates no short names"
    } else {
        Promise 'a user''s own service works in a directory with a short (8.3) name' {
            Says '~' $env:TEMP
            Ask --dir "$env:TEMP\own" service start
            Ask --dir "$env:TEMP\own" run --cwd $env:TEMP 'echo hello>said'
            Same hello (Get-Content "$LongTemp\said" -Raw).Trim()
        }
        Promise '... and a second service cannot use the directory by its long name' {
            $second = Start-Process $Program -PassThru -WindowStyle Hidden -ArgumentList 'serve', '--dir', "`"$LongTemp\own`""
            $second.Handle | Out-Null # else Windows PowerShell forgets the exit code
            if (-not $second.WaitForExit(20000)) {
                $second.Kill()
                throw 'the second service started'
            }
            Holds 'it failed' ($second.ExitCode -ne 0)
            Ask --dir "$LongTemp\own" status
        }
        Promise '... and is stopped' { Ask --dir "$env:TEMP\own" service stop }
    }

    # --- 300 concurrent jobs

    $Most = 0
    Promise '300 PowerShell jobs that run at the same time all complete' {
        Ask worker scale 300
        Set-Content -Encoding ASCII "$Jobs\many.txt" (@("while (-not (Test-Path '$Jobs\gate')) { Start-Sleep -Milliseconds 500 }; 'through'") * 300)
        Ask enqueue --batch many --max-retries 0 --shell 'powershell -Command' --lines "$Jobs\many.txt"
        $end = (Get-Date).AddMinutes(5)
        while ($Most -lt 300 -and (Get-Date) -lt $end) {
            $script:Most = [Math]::Max($Most, (ReadStatus).workers.busy)
            Start-Sleep -Milliseconds 500
        }
        New-Item -ItemType File "$Jobs\gate" | Out-Null
        $said = Q wait --batch many --timeout '15m'
        $waited = $script:Code
        $all = @((Ask list --batch many --json) | ConvertFrom-Json | ForEach-Object { $_ })
        Same 300 $all.Count
        $not = @($all | Where-Object { $_.state -ne 'completed' -or $_.exit_code -ne 0 -or $_.attempts -ne 1 })
        if ($not.Count -or $waited -ne 0) { throw "$($not.Count) have not completed in their first attempt: $($not | Select-Object -First 1 | ConvertTo-Json -Compress); wait: exit code ${waited}: $said" }
        if ($Most -lt 300) { # then the machine lacked resources, and the history of the waiting jobs contains the shortage
            $short = @($all | Where-Object { @((ReadJob $_.id).history | Where-Object { $_.reason -eq 'shortage' }).Count })
            Holds "some of the 300 jobs have a shortage in their history, because at most $Most ran at the same time" $short.Count
        }
    }
    Write-Output "     | at most $Most ran at the same time"
    Promise 'the number of workers can be set to two again' { Ask worker scale 2; Same 2 (ReadStatus).workers.total }

    # --- killed: the service manager starts it again by itself

    Promise 'a long job starts' { Long one 11 }
    $before = Seen one
    $pidBefore = (ReadService).ProcessId
    Native taskkill.exe /f /pid $pidBefore | Out-Null
    Promise 'the service is started again after it was killed' { Within 20 { Holds 'it is another process' ((ReadService).ProcessId -notin 0, $pidBefore) } }
    Promise 'the service answers' { Up }
    Promise 'the service has taken over the running job' { Within 10 { Same $before (Seen one) } }
    EndJob one
    Promise 'the job ends with its own exit code and output' { Whole one 11 }

    # --- an upgrade that fails

    Promise 'another long job starts' { Long spared 16 }
    $before = Seen spared
    Promise 'an upgrade that fails at its end changes nothing' { Same 1603 (Installer /i (Broken $New)) }
    Promise '... the service manager has started the service again' { Within 20 { Same Running (ReadService).State } }
    Promise '... the service answers' { Up }
    Promise '... the old version is installed' { VersionIs $OldVersion }
    Promise '... one version is installed' { Same 1 (@(Products).Count) }
    Promise '... PATH contains the program''s directory once' { Same 1 (@(MachinePath).Count) }
    Promise '... changed settings are kept' { Says 'by hand' (Get-Content "$State\queuectl.toml" -Raw) }
    Promise '... the service still has no other privilege' { Same SeChangeNotifyPrivilege (Privileges (Native sc.exe qprivs queuectl)) }
    Promise '... the job is still the same process' { Within 10 { Same $before (Seen spared) } }
    EndJob spared
    Promise '... and its end is recorded' { Whole spared 16 }

    # --- upgraded

    Promise 'another long job starts' { Long two 12 }
    $before = Seen two
    Promise 'the newer MSI installs while the job is running, and requires no restart' { Same 0 (Installer /i $New) }
    Promise 'the service manager has started the service' { Same Running (ReadService).State }
    Promise 'the service answers' { Up }
    Promise 'the new version is installed' { VersionIs $NewVersion }
    Promise 'the job is still the same process' { Within 10 { Same $before (Seen two) } }
    Promise 'changed settings are kept' { Says 'by hand' (Get-Content "$State\queuectl.toml" -Raw) }
    Promise 'the service still runs under its own account' { Same $script:ServiceSid (SidOf (ReadService).StartName) }
    Promise 'the program of the old runner exists while this runner has a job' { Same 2 (@(Get-ChildItem "$env:ProgramFiles\queuectl\runner" -Filter *.exe).Count) }
    Promise 'a service that fails is still started again' { Says 'RESTART' (Native sc.exe qfailure queuectl) }
    EndJob two
    Promise 'the new service records the end of the job' { Whole two 12 }
    Promise 'earlier jobs are still in the queue' { InState failing dead }
    Promise 'one version is installed' { Same 1 (@(Products).Count) }
    Promise 'PATH still contains the program''s directory once' { Same 1 (@(MachinePath).Count) }
    Promise 'an older MSI is rejected' { Same 1603 (Installer /i $Old) }
    Promise '... and the newer version stays' { VersionIs $NewVersion }
    Promise 'another long job starts' { Long repaired 15 }
    $before = Seen repaired
    Promise 'a repair with the same MSI restores a deleted file' {
        Remove-Item "$env:ProgramFiles\queuectl\README.md"
        Same 0 (Installer /fa $New)
        Holds 'the page is back' (Test-Path "$env:ProgramFiles\queuectl\README.md")
        Up
        Says 'by hand' (Get-Content "$State\queuectl.toml" -Raw)
    }
    Promise '... and removes the program of the old runner' { Same 1 (@(Get-ChildItem "$env:ProgramFiles\queuectl\runner" -Filter *.exe).Count) }
    Promise '... while the job is still the same process' { Within 10 { Same $before (Seen repaired) } }
    EndJob repaired
    Promise '... and its end is recorded' { Whole repaired 15 }

    # --- a policy that forbids programs below ProgramData

    Promise 'AppLocker forbids programs below ProgramData' {
        New-Item -ItemType Directory -Force $Probe | Out-Null
        Copy-Item "$env:SystemRoot\System32\whoami.exe" "$Probe\probe.exe"
        Holds 'it runs before' (MayRun "$Probe\probe.exe")
        SetRules
        Within 120 { Holds 'it is forbidden' (-not (MayRun "$Probe\probe.exe")) }
    }
    Promise 'a job still runs, because the runner is elsewhere' {
        RestartService # so that a runner is started
        Ask enqueue --id ruled --max-retries 0 'echo hello'
        Within 60 { InState ruled completed }
    }
    Promise '... and a job whose program is there fails with the name of the policy' {
        Ask enqueue --id forbidden --max-retries 0 -- "$Probe\probe.exe"
        Within 60 { InState forbidden dead }
        $said = ReadJob forbidden
        Same 126 $said.exit_code
        Says 'AppLocker' $said.error
    }
    ResetRules
    Promise 'without the rule, that job runs' {
        Within 120 { Ask retry forbidden; Within 10 { InState forbidden completed } }
    }

    # --- stopped

    Promise 'a job that ends soon starts' { Long three 13 }
    Start-Process -WindowStyle Hidden cmd.exe -ArgumentList '/c', "ping -n 4 127.0.0.1 >nul & echo x> $Jobs\end-three"
    Promise 'a stop of the service waits for the job' { Stop-Service queuectl; Same Stopped (ReadService).State }
    Promise 'no process of the queue is left' { Within 5 { NoProcess $ProcessesOfQueue } }
    Promise 'the service starts again' { Start-Service queuectl; Up }
    Promise 'the job ended with its own exit code and output' { Whole three 13 }
    Promise 'a job that does not end starts' { Ask config set stop_timeout '2s'; Long four 14 }
    Promise 'a stop of the service ends all processes of the job' {
        Stop-Service queuectl
        Within 5 { NoProcess $ProcessesOfQueue }
    }
    Promise 'the service starts again' { Start-Service queuectl; Up }
    Promise 'the job is back in the queue and runs again' {
        Within 20 { InState four processing; Same 2 (Began four) }
        Same 0 (ReadJob four).attempts
    }

    # --- removed

    Promise 'the product can be removed while the job is running' { Same 0 (Installer /x $New) }
    Promise 'no process of the queue is left' { Within 5 { NoProcess $ProcessesOfQueue } }
    Promise 'the service manager no longer has the service' { Holds 'there is no service' (-not (ReadService)) }
    Promise '... nor does the event log' { Holds 'there is no source' (-not (Test-Path $EventSource)) }
    Promise 'PATH no longer contains the program''s directory' { Same 0 (@(MachinePath).Count) }
    Promise 'no product is installed' { Same 0 (@(Products).Count) }
    Promise 'the program''s directory is gone' { Holds 'the directory does not exist' (-not (Test-Path "$env:ProgramFiles\queuectl")) }
    Promise 'no profile of its account is left' {
        Holds 'no directory' (-not (Test-Path "$env:SystemDrive\Users\queuectl"))
        Holds 'no entry' (-not (Test-Path "HKLM:\SOFTWARE\Microsoft\Windows NT\CurrentVersion\ProfileList\$script:ServiceSid"))
    }
    Promise 'the queue is kept' { Holds 'there is a database' (Test-Path "$State\queuectl.db") }
    Promise 'settings are kept' { Says 'by hand' (Get-Content "$State\queuectl.toml" -Raw) }
    Promise 'no program is left next to the queue' { Same 0 (@(Get-ChildItem $State -Recurse -Filter *.exe).Count) }

    # --- upgraded once more, while a client of the old version follows a job

    Collect
    Remove-Item $State -Recurse -Force
    Promise 'the older MSI installs again' { Same 0 (Installer /i $Old); Up }
    Promise 'a long job starts' { Long followed 17 }
    $before = Seen followed
    $follower = Start-Process $Program -PassThru -WindowStyle Hidden -ArgumentList 'logs', '-f', 'followed' -RedirectStandardOutput "$Jobs\followed.out" -RedirectStandardError "$Jobs\followed.err"
    $follower.Handle | Out-Null # else Windows PowerShell forgets the exit code
    Promise 'a client follows the output of the job' { Within 10 { Says '^begun followed\s*$' (Get-Content "$Jobs\followed.out" -Raw) } }
    # 3010 also means success: Windows deletes the client's old program at the next boot.
    Promise 'the newer MSI installs in the meantime' {
        $got = Installer /i $New
        if ($got -notin 0, 3010) { throw "want: exit code 0 or 3010; got: $got" }
    }
    Promise 'the service answers' { Up }
    Promise 'the new version is installed' { VersionIs $NewVersion }
    Promise 'the client has ended, and its exit code does not report success' {
        Holds 'it has ended' ($follower.WaitForExit(20000))
        if ($follower.ExitCode -eq 0) { throw "exit code 0: $(Get-Content "$Jobs\followed.err" -Raw)" }
        Says '^begun followed\s*$' (Get-Content "$Jobs\followed.out" -Raw)
    }
    Promise 'the job is still the same process' { Within 10 { Same $before (Seen followed) } }
    EndJob followed
    Promise 'the new service records the end of the job' { Whole followed 17 }
    Promise 'the product can be removed' { Same 0 (Installer /x $New) }
    Promise 'no process of the queue is left' { Within 5 { NoProcess $ProcessesOfQueue } }
} finally {
    Collect
    Attempt 'reset the rules of AppLocker' { ResetRules }
    Attempt 'remove the user' { RemoveEve }
}

Write-Output "windows: $script:Passed ok, $script:Failed failed, $script:Skipped skipped"
if ($script:Failed) { exit 1 }
exit 0
