"""Words and options of Docker, kubectl, Ansible, Slurm and git, each with the line of orch that does it."""

COMMANDS = """
kill cancel scancel qdel terminate abort halt down delete rm | to end the run | stop {run}
rm rmi remove delete prune | to remove the containers of ended runs | clean {run}
ps squeue sprio sacct jobs list ls history queue schedule log | to list the runs | runs
ps show scontrol info | to see the ranks of one | status {run}
watch | to see the state of a run again and again | status {run} --watch
top stats htop free df du usage | to watch the nodes and their run | monitor
cp copy scp download fetch | to copy what a run wrote to this computer | pull {copy}
run train start submit sbatch srun salloc qsub up apply create deploy | to start a run | launch {command}
torchrun accelerate deepspeed mpirun mpiexec python python3 | to start a run | launch {command}
rerun | to start a run again | runs rerun {name}
start continue requeue unpause | to resume a run that ended | resume {name}
up | for simulated machines to try it on | lab up --nodes 5
attach sattach tail follow | to follow the output of a run | logs {run} -f
nodes node hosts machines sinfo ansible-inventory | to list the machines | inventory list
config edit show label annotate | to see every key of a machine | inventory show
describe inspect diagnose debug trace events | for the cause of a failure, or what a run waits for | why {run}
ssh login connect | to log in to a node | shell {node}
ping check | to ask every node, and find what would break a run | doctor
install bootstrap provision | to install what a run needs on the nodes | setup
add join | to write the machines into inventory.yaml | init ADDRESS
ansible command | to run a command on nodes | exec -n {node} -- {rest}
playbook ansible-playbook | to install what a run needs on the nodes | setup
diff | for what differs between two runs | runs diff {pair}
images image push | to build the image and copy it to every node | build
pause suspend | to end a run after a checkpoint, and resume it later | stop {run}
pause suspend | to resume it | resume {name}
rename mv runs-rename runs-mv | to start a run again under another name | runs rerun {name} --name {new}
tag rename mv runs-rename runs-mv | to name a run when it starts | launch --name {new} {command}
volume volumes pv pvc dataset datasets | to list the data that runs have read | data ls
volume volumes mount pvc dataset datasets | to bring data to the nodes | launch --data DIR {command}
env secret secrets configmap | to set a variable for a run | launch --env KEY=VALUE {command}
env secret secrets | to give a run a password or a token | launch --secret NAME {command}
pip conda apt apt-get galaxy ansible-galaxy | to add packages to the image | build --requirements requirements.txt
update upgrade | to build the image again and copy it to every node | build
clone checkout commit branch stash | for your code, which every launch copies as it is | launch --workdir . {command}
scale | to start it on another number of nodes | launch {count} {command}
rollout | to restart a run from its last checkpoint | restart {run}
drain cordon taint | to leave a node out of a launch | launch -n !{node} {command}
uncordon untaint undrain | to use a node again | launch -n {node} {command}
network networks netstat ss | to find what keeps nodes from each other | doctor
port-forward proxy expose ui web | to see nodes and runs in a browser | dashboard
serve infer | to use the model of a run | predict {name} FILE
generate | to let the model of a run write text | sample {name} --prompt TEXT
gpu gpus nvidia-smi | to see the GPUs on every node and in its container | check-gpus
lab-stop lab-destroy lab-rm lab-delete | to end the lab | lab down
lab-ps lab-ls lab-list | to list its machines | lab status
inventory-ls inventory-ps inventory-get | to list the machines | inventory list
inventory-check inventory-lint | to check the file | inventory validate
checkpoints-list checkpoints-get | to list the checkpoints | checkpoints ls
checkpoints-rm checkpoints-delete | to remove all but the newest ones | checkpoints prune {name} --keep 3
checkpoints-cp checkpoints-download | to copy the newest one to this computer | checkpoints pull {run}
"""
"""Words, their purpose, and the line of orch. All rows with a word are shown; `lab-stop` is `stop` after `lab`."""
OPTIONS = """
launch | --replicas --num-nodes --nnodes --num_machines --hosts --limit -N | = | --nodes {}
launch | --gpus --gpus-per-node --gres --nproc-per-node --nproc_per_node --ntasks --num_processes -np -n | = |
launch | --volume -v | = | --mount {}
launch | -e | = | --env {}
launch | -w --working-dir --chdir -C | = | --workdir {}
launch | -p --partition --qos --time --publish --cpus --memory -m --shm-size --cpus-per-task --mem -c | = |
launch | --network --net --ipc --user -u --entrypoint --platform --restart --node-rank --node_rank | = |
launch | --master_addr --master-addr --rdzv-endpoint --rdzv_endpoint --rdzv_backend --rdzv-backend | = |
launch | --master_port | = | --master-port {}
launch | --rm --privileged --follow | |
launch | -f --filename | = |
build | -t --tag | = |
launch | --check | | --dry-run
launch | --array --dependency --begin | = |
resume | --from-checkpoint --from --from-step --step --load --ckpt --ckpt_path --ckpt-path | = | --checkpoint {}
resume | --resume_from_checkpoint --resume-from-checkpoint | = | --checkpoint {}
tensorboard | --logdir | = |
status | --follow -w -f | | --watch
stop | --force -9 -f | | --timeout 0
stop | --signal -s | = |
* | -it -ti --tty --interactive --stdin | |
* | --forks | = |
* | --limit --hosts | = | --nodes {}
* | --selector | = | --nodes {}
* | --all --all-namespaces -a -A | |
* | --namespace | = |
exec | -m --module-name -a --args | = |
* | --become --ask-become-pass -b -K | |
"""
"""Commands (`*`: any), options of other tools, `=` where a value follows, and ours instead; none: it is left out."""
REASONS = {
    "--volume": "--data sends a folder of this computer to every node; --mount shows one that each node has",
    "--gpus": "each GPU has a rank; nproc_per_node in inventory.yaml changes that",
    "-p": "such limits stand in inventory.yaml: orch docs inventory",
    "--array": "a launch is one run; `orch wait` makes the next one wait for it",
    "--from-checkpoint": "a run resumes from its newest checkpoint, or from one by its step: orch checkpoints ls",
    "--network": "orch sets that for every container",
    "--master_addr": "orch sets that on every node",
    "--rm": "a launch follows its run, and an ended container stays for `orch logs`: orch clean removes it",
    "-it": "a container has no terminal; a node has: orch shell NODE",
    "--all": "all is shown",
    "--become": "a password for sudo is asked for where one is needed",
}
"""Reason why an option is left out, by the first name of its row."""
