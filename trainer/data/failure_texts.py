"""Made-up reports of failures in a pumping station, in Spanish, for a first try without one's own data.

Sentences are chosen at random, seeded by the row's number alone; the priority follows from the consequence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from trainer.data.order import uniform

COLUMNS = ("descripcion", "modo", "causa", "prioridad")
HEADS = {"modo": 0.1, "causa": 0.6, "prioridad": 0.3}

EQUIPMENT = (
    "la bomba principal P-{n}",
    "la bomba booster B-{n}",
    "el motor eléctrico M-{n}",
    "la válvula de control FV-{n}",
    "la válvula de alivio PSV-{n}",
    "el transmisor de presión PT-{n}",
    "el medidor de flujo FT-{n}",
    "la unidad de generación G-{n}",
    "el compresor de aire C-{n}",
    "el variador de velocidad VFD-{n}",
    "el intercambiador de calor E-{n}",
    "la motobomba contra incendio MB-{n}",
    "el tanque de relevo TK-{n}",
    "la turbina T-{n}",
    "el tablero eléctrico CCM-{n}",
)
FOUND = (
    "Durante la ronda operativa se evidencia en",
    "El operador de turno reporta en",
    "En mantenimiento preventivo se halla en",
    "Desde el cuarto de control se observa en",
    "Se recibe aviso de la planta por",
    "Al arrancar la unidad se presenta en",
)
MODES = {
    "fuga externa": (
        "fuga de crudo por el sello mecánico",
        "goteo de aceite por la brida",
        "escape de producto al cubeto",
    ),
    "vibración alta": ("vibración elevada en el rodamiento lado acople", "alarma de vibración en el eje", "golpeteo"),
    "falla de arranque": ("no arranca al dar la orden", "intento de arranque fallido", "el arrancador no responde"),
    "parada no deseada": ("disparo inesperado de la unidad", "parada súbita sin orden del operador", "salida de línea"),
    "lectura anormal": ("lectura errática de la señal", "indicación congelada en el HMI", "valor fuera de rango"),
    "sobrecalentamiento": ("temperatura alta en el devanado", "cojinete caliente al tacto", "alarma por temperatura"),
}
CAUSES = {
    "desgaste": ("se encuentra desgaste en las caras del sello", "piezas al final de su vida útil", "holgura por uso"),
    "lubricación deficiente": (
        "nivel de aceite por debajo del mínimo",
        "grasa contaminada",
        "sin lubricación en el cojinete",
    ),
    "desalineación": ("acople fuera de tolerancia", "se mide desalineación angular", "base con tornillos flojos"),
    "falla eléctrica": ("fusible abierto en la fase B", "baja resistencia de aislamiento", "contactor pegado"),
    "falla de instrumentación": (
        "transmisor descalibrado",
        "cable de señal con falso contacto",
        "tarjeta de entradas dañada",
    ),
    "obstrucción": ("filtro de succión saturado", "línea tapada con parafina", "cuerpo extraño en el impulsor"),
    "corrosión": ("picadura por corrosión en la carcasa", "pared adelgazada", "pernos corroídos por ambiente salino"),
    "error operativo": (
        "válvula de succión cerrada por maniobra",
        "no se siguió el procedimiento",
        "ajuste incorrecto del set point",
    ),
}
CAUSE_SHARE = (0.24, 0.17, 0.12, 0.15, 0.13, 0.09, 0.06, 0.04)
"""Shares in which some causes are rare, as in plants: what class weights are for."""
CONSEQUENCES = {
    "alta": (
        "Se suspende el bombeo de la línea.",
        "Riesgo de derrame; se activa el plan de emergencia.",
        "Unidad fuera de servicio sin respaldo.",
    ),
    "media": (
        "Se pasa a la unidad de respaldo.",
        "Se reduce el caudal mientras se interviene.",
        "Opera con restricción.",
    ),
    "baja": ("Sin afectación a la operación.", "Se programa para la próxima parada.", "Queda en observación."),
}
DETAILS = (
    "Se toman lecturas de presión en succión y descarga, con {n} y {m} psi.",
    "Se solicita apoyo al taller de mecánica.",
    "Última intervención registrada hace {m} días.",
    "El equipo acumula {n}{m} horas de operación.",
    "Se realiza bloqueo y etiquetado antes de intervenir.",
    "Se revisa el historial y se halla un evento similar.",
    "Se deja registro fotográfico en la orden de trabajo {n}{m}.",
    "Pendiente repuesto en bodega, código {m}-{n}.",
    "Se mide corriente de {m} amperios, dentro de lo normal.",
    "Personal de integridad acompaña la inspección.",
)


def rows(count: int) -> list[tuple[str, str, str, str]]:
    """(descripcion, modo, causa, prioridad) of each."""
    return [_row(iter(numbers)) for numbers in uniform(20, np.arange(count, dtype=np.int64), 40).tolist()]


def _row(chance: Iterator[float]) -> tuple[str, str, str, str]:
    def one_of(choices: Collection[str]) -> str:
        return tuple(choices)[int(next(chance) * len(choices))]

    mode = one_of(MODES)
    cause = tuple(CAUSES)[int(np.searchsorted(np.cumsum(CAUSE_SHARE), next(chance)))]
    priority = one_of(CONSEQUENCES)
    sentences = [f"{one_of(FOUND)} {one_of(EQUIPMENT)}: {one_of(MODES[mode])}."]
    # In one report of eight the cause cannot be known from the text.
    if next(chance) > 0.12:
        sentences.append(f"Como causa, {one_of(CAUSES[cause])}.")
    sentences.append(one_of(CONSEQUENCES[priority]))
    # Most reports are short, a few are long.
    sentences[1:1] = [one_of(DETAILS) for _ in range(int(14 * next(chance) ** 4))]
    numbers = {"n": 10 + int(90 * next(chance)), "m": 100 + int(800 * next(chance))}
    return " ".join(sentences).format(**numbers), mode, cause, priority
