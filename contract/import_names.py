"""Packages by the name under which a program imports them, where the two differ.

A package that differs from its module by case, `-` or `_` alone needs no row: the index takes either. The rows were
compared with the table of pipreqs 0.5.0 (Apache-2.0), which lacks some and names packages that were renamed since.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ROWS = """
Bio biopython
Crypto pycryptodome
Image pillow
MySQLdb mysqlclient
OpenGL PyOpenGL
OpenSSL pyOpenSSL
PIL pillow
absl absl-py
attr attrs
bs4 beautifulsoup4
community python-louvain
cv2 opencv-python-headless opencv-python opencv-contrib-python opencv-contrib-python-headless
dateutil python-dateutil
docx python-docx
dotenv python-dotenv
faiss faiss-cpu faiss-gpu faiss-gpu-cu12
fitz pymupdf
git GitPython
github PyGithub
google.protobuf protobuf
grpc grpcio
hydra hydra-core
imblearn imbalanced-learn
jwt PyJWT
Levenshtein python-Levenshtein Levenshtein
magic python-magic
mpl_toolkits matplotlib
nvidia_smi nvidia-ml-py3
onnxruntime onnxruntime onnxruntime-gpu
ot POT
past future
pkg_resources setuptools
pptx python-pptx
psycopg2 psycopg2-binary psycopg2
pylab matplotlib
pynvml nvidia-ml-py pynvml
pywt PyWavelets
ruamel ruamel.yaml
serial pyserial
skimage scikit-image
sklearn scikit-learn
skopt scikit-optimize
slugify python-slugify
snappy python-snappy
socks PySocks
tensorflow tensorflow tensorflow-cpu
tlz toolz
umap umap-learn
wx wxPython
yaml pyyaml
zmq pyzmq
"""
_PACKAGES: dict[str, tuple[str, ...]] = {
    module: tuple(packages) for module, *packages in map(str.split, _ROWS.strip().splitlines())
}
"""Packages by module: the first is proposed, each of the others brings the module, too."""


def package_of(module: str, named: Iterable[str] = ()) -> str:
    """Return the package that brings a module, as the package index names it.

    `named`: packages that a project names already; one of them is preferred.
    """
    candidates = packages_of(module)
    known = {normal_name(name): name for name in named}
    return next((known[normal_name(one)] for one in candidates if normal_name(one) in known), candidates[0])


def packages_of(module: str) -> tuple[str, ...]:
    """Return all known packages that bring a module: a program may import it under a name with dots."""
    top = module.partition(".")[0]
    dotted = ".".join(module.split(".")[:2])
    return _PACKAGES.get(dotted) or _PACKAGES.get(top) or (top.replace("_", "-"),)


def normal_name(name: str) -> str:
    """Name of a package as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
