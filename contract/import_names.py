"""Packages by the name under which a program imports them, where the two differ.

A package that differs from its module by case, `-` or `_` alone needs no row: the index takes either. The rows were
compared with the table of pipreqs 0.5.0 (Apache-2.0), which lacks some and names packages that were renamed since.

An import is no name of a package: `pip install apex` brings a toolkit of the web framework Pyramid. So the table has
modules of machine learning whose name on the index is that of another project, of a stub, or free, with the package
that is meant, or with its repository where the index does not have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ROWS = """
Bio biopython
Crypto pycryptodome
Image pillow
Levenshtein python-Levenshtein Levenshtein
MeCab mecab-python3
MySQLdb mysqlclient
OpenGL PyOpenGL
OpenSSL pyOpenSSL
PIL pillow
absl absl-py
acme dm-acme
alphafold git+https://github.com/google-deepmind/alphafold
amp_C git+https://github.com/NVIDIA/apex
apex git+https://github.com/NVIDIA/apex
apex_C git+https://github.com/NVIDIA/apex
attr attrs
awq autoawq
ax ax-platform
bayes_opt bayesian-optimization
bleurt git+https://github.com/google-research/bleurt
bs4 beautifulsoup4
clip git+https://github.com/openai/CLIP openai-clip
community python-louvain
composer mosaicml composer
cudf cudf-cu12 cudf-cu13
cugraph cugraph-cu12 cugraph-cu13
cuml cuml-cu12 cuml-cu13
cupy cupy-cuda12x cupy-cuda13x cupy
cv2 opencv-python-headless opencv-python opencv-contrib-python opencv-contrib-python-headless
dateutil python-dateutil
deep_ep git+https://github.com/deepseek-ai/DeepEP
deep_gemm git+https://github.com/deepseek-ai/DeepGEMM
detectron2 git+https://github.com/facebookresearch/detectron2
diff_gaussian_rasterization git+https://github.com/graphdeco-inria/diff-gaussian-rasterization
discord discord.py
dns dnspython
docx python-docx
dotenv python-dotenv
esm fair-esm esm
esm.models esm
esm.sdk esm
faiss faiss-cpu faiss-gpu faiss-gpu-cu12
fastchat fschat
fitz pymupdf
flash lightning-flash
flash_attn_2_cuda flash-attn
flash_attn_interface git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper
gi PyGObject
git GitPython
github PyGithub
google.protobuf protobuf
groundingdino groundingdino-py
grpc grpcio
guided_diffusion git+https://github.com/openai/guided-diffusion
haiku dm-haiku
hydra hydra-core
ignite pytorch-ignite
imblearn imbalanced-learn
imwatermark invisible-watermark
jose python-jose
jwt PyJWT
kafka kafka-python
kaolin git+https://github.com/NVIDIAGameWorks/kaolin
lavis salesforce-lavis
ldm git+https://github.com/CompVis/latent-diffusion
llama git+https://github.com/meta-llama/llama
llama_cpp llama-cpp-python
llava git+https://github.com/haotian-liu/LLaVA
magic python-magic
megatron megatron-core
mmaction mmaction2
mmseg mmsegmentation
modelopt nvidia-modelopt
mpl_toolkits matplotlib
muon git+https://github.com/KellerJordan/Muon
nacl PyNaCl
nemo nemo-toolkit
neural_renderer neural-renderer-pytorch
nvdiffrast git+https://github.com/NVlabs/nvdiffrast
nvidia.dali nvidia-dali-cuda120 nvidia-dali-cuda130 nvidia-dali-cuda110
nvidia_smi nvidia-ml-py3
onnxruntime onnxruntime onnxruntime-gpu
open_clip open-clip-torch
openslide openslide-python
osgeo GDAL
ot POT
panopticapi git+https://github.com/cocodataset/panopticapi
past future
pkg_resources setuptools
pl_bolts lightning-bolts
pointnet2_ops git+https://github.com/erikwijmans/Pointnet2_PyTorch#subdirectory=pointnet2_ops_lib
pptx python-pptx
psycopg2 psycopg2-binary psycopg2
pylab matplotlib
pynvml nvidia-ml-py pynvml
pytorch_grad_cam grad-cam
pywt PyWavelets
ranger git+https://github.com/lessw2020/Ranger-Deep-Learning-Optimizer
retro stable-retro gym-retro
reverb dm-reverb
ruamel ruamel.yaml
selective_scan_cuda mamba-ssm
serial pyserial
simple_knn git+https://gitlab.inria.fr/bkerbl/simple-knn
skbio scikit-bio
skimage scikit-image
sklearn scikit-learn
sklearn_extra scikit-learn-extra
skmultilearn scikit-multilearn
skopt scikit-optimize
sksurv scikit-survival
skvideo scikit-video
slugify python-slugify
snappy python-snappy
socks PySocks
solo solo-learn
sonnet dm-sonnet
speech_recognition SpeechRecognition
spinup git+https://github.com/openai/spinningup
streaming mosaicml-streaming
surprise scikit-surprise
taming taming-transformers
tap typed-argument-parser
telegram python-telegram-bot
tensorflow tensorflow tensorflow-cpu
tinycudann git+https://github.com/NVlabs/tiny-cuda-nn#subdirectory=bindings/torch
tlz toolz
torchsparse git+https://github.com/mit-han-lab/torchsparse
tree dm-tree
umap umap-learn
usb pyusb
websocket websocket-client
whisper openai-whisper
wx wxPython
yaml pyyaml
zmq pyzmq
"""
_PACKAGES: dict[str, tuple[str, ...]] = {
    module: tuple(packages) for module, *packages in map(str.split, _ROWS.strip().splitlines())
}
"""Packages by module: the first is proposed, each of the others brings the module, too."""
BUILT_WITH_TORCH = frozenset({
    "amp_C", "apex", "apex_C", "causal_conv1d", "deep_ep", "deep_gemm", "detectron2",
    "diff_gaussian_rasterization", "flash_attn", "flash_attn_2_cuda", "flash_attn_interface", "kaolin",
    "mamba_ssm", "nvdiffrast", "pointnet2_ops", "pytorch3d", "selective_scan_cuda", "simple_knn", "tinycudann",
    "torchsparse",
})  # fmt: skip
"""Modules whose packages import torch while they are built: pip builds them with `--no-build-isolation` alone."""
OWN_MODULES = frozenset({
    "args", "augmentation", "backbones", "cfg", "common", "conf", "config", "configs", "constants", "core", "data",
    "dataloader", "engine", "helpers", "layers", "lib", "loader", "logger", "loss", "losses", "metrics", "misc",
    "model", "models", "modules", "my_utils", "net", "nets", "network", "networks", "optim", "options", "opts",
    "params", "preprocess", "preprocessing", "settings", "src", "tools", "transforms", "util", "utils",
})  # fmt: skip
"""Usual names of modules beside a script. The index has packages of many of these names, which no script means."""
_SOURCE = re.compile(r"git\+|https://")


def package_of(module: str, named: Iterable[str] = ()) -> str:
    """Return the package that brings a module, as the package index names it; an address where the index has none.

    `named`: packages that a project names already; one of them is preferred.
    """
    candidates = packages_of(module)
    known = {normal_name(name): name for name in named}
    names = (module.partition(".")[0] if is_source(one) else one for one in candidates)
    return next((known[normal_name(one)] for one in names if normal_name(one) in known), candidates[0])


def packages_of(module: str) -> tuple[str, ...]:
    """Return all known packages that bring a module: a program may import it under a name with dots."""
    top = module.partition(".")[0]
    dotted = ".".join(module.split(".")[:2])
    return _PACKAGES.get(dotted) or _PACKAGES.get(top) or (top.replace("_", "-"),)


def is_source(package: str) -> bool:
    """Return whether a package is the address of a repository, as pip takes it, and none of the index."""
    return bool(_SOURCE.match(package))


def normal_name(name: str) -> str:
    """Name of a package as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
