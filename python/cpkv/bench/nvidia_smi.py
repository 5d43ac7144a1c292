"""What torch does not know of a GPU, and NVIDIA's own command does."""

import subprocess


def nvidia_smi(*fields: str) -> dict[str, str]:
    """Return fields of the first GPU as `nvidia-smi --query-gpu` has them; "unknown" if it does not say."""
    unknown = dict.fromkeys(fields, "unknown")
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],  # noqa: S607 - wherever it is
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return unknown
    values = [value.strip() for value in (done.stdout.splitlines() or [""])[0].split(",")]
    return dict(zip(fields, values, strict=True)) if not done.returncode and len(values) == len(fields) else unknown
