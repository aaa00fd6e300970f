"""What every load of a checkpoint must say: no code of its own, no pickles. Told by the product's syntax trees."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
WITHOUT_WEIGHTS = {"AutoConfig", "AutoTokenizer"}


def test_nothing_is_loaded_with_code_of_its_own_or_from_pickles() -> None:
    found = 0
    for path in (
        path for folder in ("store", "retriever", "blend", "service") for path in (ROOT / folder).rglob("*.py")
    ):
        for call in ast.walk(ast.parse(path.read_text())):
            match call:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=loader), attr="from_pretrained")):
                    found += 1
                    given = {
                        each.arg: each.value.value for each in call.keywords if isinstance(each.value, ast.Constant)
                    }
                    place = f"{path.relative_to(ROOT)}:{call.lineno}"
                    assert given.get("trust_remote_code") is False, place
                    assert loader in WITHOUT_WEIGHTS or given.get("use_safetensors") is True, place
                case ast.Call(func=ast.Name(id="SentenceTransformer")):
                    found += 1
                    told = ast.unparse(call)
                    assert "'use_safetensors': True" in told and "trust_remote_code" not in told, told
                case ast.Attribute(attr="from_pretrained", value=loader):
                    assert isinstance(loader, ast.Name), (
                        f"{path}:{call.lineno}: call it on a name, so that this sees it"
                    )
                case _:
                    pass
    assert found >= 6
