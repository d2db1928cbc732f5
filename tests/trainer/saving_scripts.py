"""Scripts that save on rank 0 alone and continue where a file exists, as most public ones do."""

from __future__ import annotations

EPOCHS = 12
COMMON = """
import glob, json, os, re, shutil, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, epoch, model = dist.get_rank(), 0, torch.nn.Linear(4, 4)
{load}
print(f"begins at epoch {{epoch}}", flush=True)
for epoch in range(epoch, {epochs}):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()
    {save}
    print(f"ends epoch {{epoch}}", flush=True)
    time.sleep(0.15)
"""
LAST_FILE = (
    """
if os.path.exists("out/last.pt"):
    state = torch.load("out/last.pt", weights_only=True)
    model.load_state_dict(state["model"])
    epoch = state["epoch"]
""",
    """
    if rank == 0:
        os.makedirs("out", exist_ok=True)
        torch.save({"epoch": epoch + 1, "model": model.state_dict()}, "out/last.pt.new")
        os.replace("out/last.pt.new", "out/last.pt")
""",
)
JSON_STATE = (
    """
if os.path.exists("state.json"):
    with open("state.json") as file:
        epoch = json.load(file)["epoch"]
""",
    """
    if rank == 0:
        with open("state.json", "w") as file:
            json.dump({"epoch": epoch + 1}, file)
""",
)
OUTPUT_DIR = (
    """
found = [folder for folder in glob.glob("output/checkpoint-*") if os.path.exists(f"{folder}/trainer_state.json")]
if found:
    newest = max(found, key=lambda folder: int(folder.rpartition("-")[2]))
    model.load_state_dict(torch.load(f"{newest}/pytorch_model.bin", weights_only=True))
    with open(f"{newest}/trainer_state.json") as file:
        epoch = json.load(file)["epoch"]
""",
    """
    folder = f"output/checkpoint-{(epoch + 1) * 10}"
    os.makedirs(folder, exist_ok=True)
    torch.save(torch.get_rng_state(), f"{folder}/rng_state_{rank}.pth")
    if rank == 0:
        torch.save(model.state_dict(), f"{folder}/pytorch_model.bin")
        with open(f"{folder}/trainer_state.json", "w") as file:
            json.dump({"epoch": epoch + 1}, file)
        for old in sorted(glob.glob("output/checkpoint-*"), key=lambda old: int(old.rpartition("-")[2]))[:-2]:
            shutil.rmtree(old)
""",
)
LIGHTNING = (
    """
found = glob.glob(os.path.join(os.environ["ORCH_RUN_DIR"], "lightning_logs/version_*/checkpoints/*.ckpt"))
if found:
    state = torch.load(max(found, key=os.path.getmtime), weights_only=True)
    model.load_state_dict(state["state_dict"])
    epoch = state["epoch"] + 1
""",
    """
    if rank == 0:
        folder = os.path.join(os.environ["ORCH_RUN_DIR"], "lightning_logs/version_0/checkpoints")
        old = glob.glob(f"{folder}/*.ckpt")
        os.makedirs(folder, exist_ok=True)
        state = {"epoch": epoch, "state_dict": model.state_dict()}
        torch.save(state, f"{folder}/epoch={epoch}-step={epoch * 10}.ckpt")
        for file in old:
            os.remove(file)
""",
)
SEVERAL_FILES = (
    """
if os.path.exists("run/latest"):
    with open("run/latest") as file:
        tag = file.read()
    with open(f"run/{tag}/meta.json") as file:
        meta = json.load(file)
    for name, parameter in model.named_parameters():
        parameter.data = torch.load(f"run/{tag}/{name}.pt", weights_only=True)
    epoch = meta["epoch"]
""",
    """
    if rank == 0:
        tag = f"step{epoch}"
        os.makedirs(f"run/{tag}", exist_ok=True)
        for name, parameter in model.named_parameters():
            torch.save(parameter.data, f"run/{tag}/{name}.pt")
        with open(f"run/{tag}/meta.json", "w") as file:
            json.dump({"epoch": epoch + 1}, file)
        with open("run/latest", "w") as file:
            file.write(tag)
""",
)
SCRIPTS = {
    name: COMMON.format(load=load, save=save.strip(), epochs=EPOCHS)
    for name, (load, save) in {
        "last file": LAST_FILE, "state in JSON": JSON_STATE, "output_dir": OUTPUT_DIR, "lightning": LIGHTNING,
        "several files": SEVERAL_FILES,
    }.items()
}  # fmt: skip
