"""Ed25519 signatures of `.ingot` files, and what the `trust` argument of `load` requires.

    write_keys("release.pem", "release.pub.pem")            a new key pair; keep the first file secret
    sign_file("m.ingot", "release.pem")                     the file again, with a signature
    ingot_runtime.load("m.ingot", trust="release.pub.pem")  refused unless that key signed every byte of it

The signature is of the bytes of manifest.json, which has the size and the SHA-256 of every other member. It needs the
`cryptography` package, which is imported when a key is given and not before.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from ..errors import InvalidKey, SigningUnavailable, UntrustedFile, format_error
from .member_names import SIGNATURE
from .reader import Container, open_container
from .writer import write_container

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

# A public key: the path of a PEM file, the PEM text or the 32 bytes themselves, or an object of `cryptography`.
Key: TypeAlias = "str | os.PathLike[str] | bytes | Ed25519PublicKey"
# Who may have written a file: True for anybody, False for nobody, or the holders of one of these keys.
Trust: TypeAlias = "bool | Key | Sequence[Key]"

_RAW_SIZE = 32
_KEY_FILE_LIMIT = 1 << 16


def check_trust(container: Container, trust: Trust) -> None:
    """Raises UntrustedFile unless one of the keys in `trust` signed the file; a bool requires no signature.

    Raises InvalidKey for a key that is not an Ed25519 public key, SigningUnavailable without `cryptography`.
    """
    if isinstance(trust, bool):
        return
    keys = [read_public_key(key) for key in _keys(trust)]
    if container.signature is None:
        raise UntrustedFile(
            "the file is not signed",
            why="a key was given as `trust`, so only a signed file may be used",
            fix="get the signed file from whoever made it, or sign it: ingot sign FILE --key KEY",
            path=container.path,
        )
    from cryptography.exceptions import InvalidSignature

    for key in keys:
        try:
            key.verify(container.signature, container.signed)
            return
        except InvalidSignature:
            continue
    raise UntrustedFile(
        "the file is not signed by a key that is trusted",
        why=f"its signature verifies with none of the keys given ({len(keys)})",
        fix="do not use the file; if you know who signed it and trust them, give their public key",
        path=container.path,
        member=SIGNATURE,
    )


def sign_file(
    path: str | os.PathLike[str], key: str | os.PathLike[str], output: str | os.PathLike[str] | None = None
) -> None:
    """Writes a signed copy of a file over it, or to `output`. `key` is a PEM file with an Ed25519 private key.

    A signature that the file has already is replaced. The file is checked first, and written whole or not at all.
    """
    private = _read_private_key(key)
    with open_container(path, writable=False) as container:
        own = ("format", "schema", "members")
        fields = {name: value for name, value in container.manifest.items() if name not in own}
        members = {name: container.read(name) for name in container.names}
        write_container(path if output is None else output, members, fields, private.sign)
        for view in members.values():
            view.release()


def write_keys(private: str | os.PathLike[str], public: str | os.PathLike[str]) -> None:
    """Writes a new Ed25519 key pair as two PEM files, the private one readable by its owner only.

    Raises FileExistsError, and writes nothing, where one of them is there.
    """
    _, serialization, ed25519 = _cryptography()
    key = ed25519.Ed25519PrivateKey.generate()
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    shown = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    _create(public, shown, 0o644)
    try:
        _create(private, secret, 0o600)
    except OSError:
        os.unlink(public)
        raise


def read_public_key(key: Key) -> "Ed25519PublicKey":
    """The public key that `key` stands for. Raises InvalidKey, SigningUnavailable, and OSError for no such file."""
    exceptions, serialization, ed25519 = _cryptography()
    found: Ed25519PublicKey
    if isinstance(key, ed25519.Ed25519PublicKey):
        found = key
        return found
    if not isinstance(key, str | bytes | os.PathLike):
        _refuse("a key", f"it is a {type(key).__name__}", "give the path of a PEM file with an Ed25519 public key")
    name = "the key" if isinstance(key, bytes) else os.fspath(key)
    data = key if isinstance(key, bytes) else _read_file(os.fspath(key))
    fix = "give an Ed25519 public key: `ingot keygen` and `openssl pkey -pubout` write one"
    if len(data) == _RAW_SIZE:
        found = ed25519.Ed25519PublicKey.from_public_bytes(data)
        return found
    if b"PRIVATE KEY" in data:
        _refuse(name, "it is a private key, which only the signer may have", fix)
    try:
        found = serialization.load_pem_public_key(data)
    except (ValueError, exceptions.UnsupportedAlgorithm) as failure:
        _refuse(name, str(failure), fix)
    is_right = isinstance(found, ed25519.Ed25519PublicKey)
    return found if is_right else _refuse(name, "it is of another kind", fix)


def _read_private_key(path: str | os.PathLike[str]) -> "Ed25519PrivateKey":
    exceptions, serialization, ed25519 = _cryptography()
    found: Ed25519PrivateKey
    name = os.fspath(path)
    fix = "give an Ed25519 private key in PEM, without a passphrase: `ingot keygen` writes one"
    try:
        found = serialization.load_pem_private_key(_read_file(name), None)
    except (ValueError, TypeError, exceptions.UnsupportedAlgorithm) as failure:  # TypeError: it needs a passphrase
        _refuse(name, str(failure), fix)
    is_right = isinstance(found, ed25519.Ed25519PrivateKey)
    return found if is_right else _refuse(name, "it is of another kind", fix)


def _keys(trust: Any) -> list[Key]:
    keys = list(trust) if isinstance(trust, list | tuple | set | frozenset) else [trust]
    if not keys:
        raise InvalidKey(format_error("No key is given.", fix="give one or more public keys, or True or False"))
    return keys


def _cryptography() -> tuple[Any, Any, Any]:
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as failure:
        raise SigningUnavailable(
            format_error(
                "Signatures need the cryptography package.",
                why=str(failure),
                fix="install it: pip install 'ingot-runtime[signing]', or pip install cryptography",
            )
        ) from failure
    return exceptions, serialization, ed25519


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(_KEY_FILE_LIMIT + 1)
    return data if len(data) <= _KEY_FILE_LIMIT else _refuse(path, "it is too large for a key", "give a PEM file")


def _create(path: str | os.PathLike[str], data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(data)


def _refuse(name: str, why: str, fix: str) -> NoReturn:
    raise InvalidKey(format_error(f"{name} is not a key that can be used.", why=why, fix=fix))
